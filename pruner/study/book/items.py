"""Items of the book: a table or figure, its commands, expected results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import yaml

from pruner.errors import PrunerError, check_chosen

ITEM_FILE = "item.yaml"
Where = Mapping[str, Any]
Source = Literal["paper", "chance", "bound"]  # where an expected range comes from
FACTORS = ("speedup", "times_less")  # columns that begin so hold factors of time
VERDICTS = (
    "reproduced", "partly reproduced", "not reproduced", "undecided", "not in the paper", "not run",
)  # fmt: skip
_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A key number: the mean of `value` over rows selected by `where`.

    With `minus` the mean over those other rows is subtracted. `of` is the table or figure of the
    paper, where it is only a part of the item's. `paper` is the number of the paper, None where it
    has none or it is unknown; `differs` gives the reason why the two may differ. `chance` is the
    result of chance on the same programs, as a number or as rows and a column. The committed
    results must lie in the range `expected`, [low, high], if given: `expected_from` gives its
    origin: the paper, chance (by default from chance to 1) or a bound. No range is drawn around our
    own results.

    `own` selects the rows of the rival, whose mean of the same column is shown for comparison; with
    `minus` it is the subtracted mean. `alone` gives the reason why chance or the rival's own row is
    lacking. `each` names the columns that distinguish the averaged rows: their values are then
    shown, and how many runs reached the target.
    """

    name: str
    value: str
    where: Where = field(default_factory=dict)
    minus: Where | None = None
    of: str = ""
    expected: Sequence[float] | None = None
    expected_from: Source | None = None
    chance: float | Where | None = None
    own: Where | None = None
    each: Sequence[str] = ()
    paper: float | None = None
    differs: str = ""
    alone: str = ""

    @property
    def is_factor(self) -> bool:
        """Whether it is a factor of time, 0 if the target is never reached."""
        return self.value.startswith(FACTORS)

    def __post_init__(self) -> None:
        known, given = get_args(Source), self.expected
        if given is not None and (len(given) != 2 or not given[0] <= given[1]):
            raise PrunerError(f"number {self.name}: expected={given} must be [low, high]")
        if self.expected_from is not None:
            check_chosen(f"number {self.name}: expected_from", [self.expected_from], known)
        if given is not None and self.expected_from is None:
            raise PrunerError(f"number {self.name}: say expected_from, one of {', '.join(known)}")
        if self.expected_from == "chance" and self.chance is None:
            raise PrunerError(f"number {self.name}: expected_from=chance, but no chance is given")
        if isinstance(self.chance, Mapping) and set(self.chance) != {"where", "value"}:
            raise PrunerError(f"number {self.name}: chance has where and value, or is a number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Means of columns (`values`: column to heading), a row for each choice of `rows`."""

    title: str
    rows: Sequence[str]
    values: Mapping[str, str]
    where: Where = field(default_factory=dict)
    spread: bool = False
    digits: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Means of `y`: lines over `x`, or bars for each `x`.

    Bars have a panel for each `x`. A line or bar for each of `series`, a column or several; of
    several, the first gives lines their panels. `spread` adds the sample deviation of the rows of
    each mean, `log` names the logarithmic axes of lines (x, y, xy).
    """

    title: str
    kind: Literal["line", "bar"]
    x: str
    y: str
    series: str | Sequence[str]
    where: Where = field(default_factory=dict)
    spread: bool = True
    log: str = ""
    xlabel: str = ""
    ylabel: str = ""

    def __post_init__(self) -> None:
        check_chosen(f"plot {self.title}: kind", [self.kind], ("line", "bar"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A folder of ``experiments/``.

    `results` are CSV files, relative to the folder; `missing` gives values where a file lacks a
    column. `run` has the shell commands of every preset ({python}, {root} the records, {data} the
    folder that holds them, {out} the folder of results), `minutes` their duration on two cores.
    `verdict`, one of `VERDICTS`, is on the paper's claim, and `finding` gives the reason with
    numbers of `results`. A `summary` is a sentence for the top of the book.
    """

    name: str
    folder: Path
    title: str
    paper: str
    shows: str
    results: Sequence[str]
    run: Mapping[str, Sequence[str]]
    minutes: Mapping[str, float]
    missing: Mapping[str, Any] = field(default_factory=dict)
    numbers: Sequence[Number] = ()
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    verdict: str = ""
    finding: str = ""
    summary: str = ""

    def __post_init__(self) -> None:
        if self.verdict:
            check_chosen("verdict", [self.verdict], VERDICTS)
        names = [number.name for number in self.numbers]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise PrunerError(f"numbers: {'; '.join(twice)}: a name stands twice")

    @property
    def in_parts(self) -> bool:
        """Whether its results may come in parts, since it needs hours or a device."""
        return not {"full", "small"} & set(self.run)


def load_item(folder: Path) -> Item:
    """Read ``<folder>/item.yaml``; raises PrunerError for unknown or missing keys."""
    path = folder / ITEM_FILE
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise PrunerError("it must map names to values")
        for name, kind in (("numbers", Number), ("tables", Table), ("plots", Plot)):
            content[name] = tuple(_one(kind, part) for part in content.get(name, ()))
        return _one(Item, content | {"name": folder.name, "folder": folder})
    except (UnicodeDecodeError, yaml.YAMLError, PrunerError) as error:
        raise PrunerError(f"{path}: {error}") from error


def load_items(folder: Path) -> list[Item]:
    """Every item below a folder, by name."""
    items = [load_item(path.parent) for path in sorted(folder.glob(f"*/{ITEM_FILE}"))]
    if not items:
        raise PrunerError(f"{folder}: no <item>/{ITEM_FILE} there")
    return items


def _one(kind: type[_Part], content: Mapping[str, Any]) -> _Part:
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(content) - known)
    if unknown:
        raise PrunerError(f"{', '.join(unknown)}: unknown; known: {', '.join(sorted(known))}")
    try:
        return kind(**content)
    except TypeError as error:  # a field without a default is missing
        raise PrunerError(str(error).partition(") ")[2] or str(error)) from error
