"""Numbers of the book: means, spreads and cells from CSV files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pruner.errors import PrunerError
from pruner.files import as_written
from pruner.study.book.items import Item, Number, Plot, Table, Where
from pruner.study.markdown import mean_text

TextRows = list[list[str]]


def read_results(item: Item, results: Path | None = None) -> pd.DataFrame | None:
    """Rows of an item's CSV files below `results`; None while files are missing."""
    folder = item.folder if results is None else results / item.name
    paths = [path for name in item.results if (path := folder / name).is_file()]
    if not paths or (len(paths) < len(item.results) and not item.in_parts):
        return None
    tables = []
    for path in paths:
        with as_written(path):
            tables.append(pd.read_csv(path))
    rows = pd.concat(tables, ignore_index=True)
    for name, value in item.missing.items():
        rows[name] = rows[name].fillna(value) if name in rows else value
    return rows


class NoRows(PrunerError):
    """A selection that no row of the results satisfies."""


def select(rows: pd.DataFrame, where: Where) -> pd.DataFrame:
    """Rows whose columns have a given value; raises NoRows without any."""
    kept = rows
    for column, wanted in where.items():
        if column not in rows:
            raise NoRows(f"where: no column {column}; there are: {', '.join(rows.columns)}")
        kept = kept[kept[column].isin(wanted if isinstance(wanted, list) else [wanted])]
    if not len(kept):
        raise NoRows(f"where: no row has {dict(where)}")
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyNumber:
    """A key number with its value, and the rival's (`own`) and chance's.

    `parts`: the averaged values by name; `reached`: how often the target was reached, of how many.
    """

    number: Number
    value: float
    chance: float | None = None
    own: float | None = None
    rival: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    reached: tuple[int, int] | None = None

    @property
    def expected(self) -> tuple[float, float] | None:
        """The range it should lie in."""
        if self.number.expected is not None:
            return self.number.expected[0], self.number.expected[1]
        if self.number.expected_from == "chance" and self.chance is not None:
            return self.chance, 1.0
        return None

    @property
    def inside(self) -> bool:
        """Whether it lies in the expected range; without one it does."""
        return self.expected is None or self.expected[0] <= self.value <= self.expected[1]


def measure(number: Number, rows: pd.DataFrame) -> KeyNumber:
    """Compute a key number with chance, rival and averaged values."""
    chance, beside = number.chance, number.minus if number.own is None else number.own
    try:
        ours = select(rows, number.where)
        value = _mean(ours, number.value)
        if number.minus is not None:
            value -= _mean(select(rows, number.minus), number.value)
        own = None if beside is None else _mean(select(rows, beside), number.value)
        if isinstance(chance, Mapping):
            chance = _mean(select(rows, chance["where"]), chance["value"])
        parts = _parts(ours, number)
    except NoRows as error:
        raise NoRows(f"number {number.name}: {error}") from error
    # the rival's name: the values that only the rival's rows have
    only = [value for column, value in (beside or {}).items() if number.where.get(column) != value]
    names = [value for value in only if not isinstance(value, list)]
    return KeyNumber(
        number=number,
        value=value,
        chance=chance,
        own=own,
        rival=", ".join(map(_label, names)),
        parts=parts,
        reached=_reached(ours, number) if number.is_factor and number.each else None,
    )


def _parts(rows: pd.DataFrame, number: Number) -> dict[str, float]:
    if not number.each:
        return {}

    def name(key: tuple[Any, ...]) -> str:
        pairs = zip(number.each, key, strict=True)
        return ", ".join(v if isinstance(v, str) else f"{column} {v:g}" for column, v in pairs)

    return {name(key): _mean(part, number.value) for key, part in _groups(rows, number.each)}


def _reached(rows: pd.DataFrame, number: Number) -> tuple[int, int]:
    """Number of runs that reached the target, and number of runs (`seeds` a row).

    Without the column `reached` a row with a factor above 0 counts.
    """
    if "reached" not in rows or rows.reached.isna().any():
        return int((rows[number.value] > 0).sum()), len(rows)
    runs = rows.seeds.fillna(1).sum() if "seeds" in rows else len(rows)
    return int(rows.reached.sum()), int(runs)


def _check_columns(rows: pd.DataFrame, names: Iterable[str]) -> None:
    for name in names:
        if name not in rows:
            raise NoRows(f"no column {name}; there are: {', '.join(rows.columns)}")


def _mean(rows: pd.DataFrame, column: str) -> float:
    _check_columns(rows, [column])
    return float(rows[column].mean())


def table_cells(table: Table, rows: pd.DataFrame) -> TextRows:
    """Heading and rows as text: means with the sample standard deviation."""

    def cell(values: "pd.Series[float]") -> str:
        if len(values) and values.mean() >= 1000:  # a count: digits behind the point say nothing
            return f"{values.mean():,.0f}"
        return mean_text(values, table.digits, spread=table.spread)

    _check_columns(rows, table.values)
    cells = [[*table.rows, *table.values.values()]]
    for key, group in _groups(select(rows, table.where), table.rows):
        texts = [cell(group[name].dropna()) for name in table.values]
        cells.append([*map(_label, key), *texts])
    return cells


def _groups(rows: pd.DataFrame, names: Sequence[str]) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Groups in order of appearance, by the first name, then the second."""
    _check_columns(rows, names)
    first = {name: {value: n for n, value in enumerate(rows[name].unique())} for name in names}

    def place(group: tuple[tuple[Any, ...], pd.DataFrame]) -> list[int]:
        return [first[name][value] for name, value in zip(names, group[0], strict=True)]

    return sorted(((key, group) for key, group in rows.groupby(list(names))), key=place)


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A colour of a plot: `x` (numbers or names), means `y`, sample deviations.

    ``panel``: of names in several columns the first, with which `name` begins.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[float]
    spread: Sequence[float]
    panel: str = field(default="", repr=False)


def plot_series(plot: Plot, rows: pd.DataFrame) -> list[Series]:
    """Data of a plot, rounded: another machine gives the same text.

    A point is the mean of the rows that have `y`. Raises NoRows without any.
    """
    _check_columns(rows, [plot.x, plot.y])
    found = []
    columns = [plot.series] if isinstance(plot.series, str) else plot.series
    for names, group in _groups(select(rows, plot.where), columns):
        parts = _groups(group, [plot.x])
        # some of the files have x alone: a line that ended there would have no name
        points = [(key[0], part[plot.y]) for key, part in parts if part[plot.y].notna().any()]
        if not points:
            continue
        if plot.kind == "line":
            points.sort(key=lambda point: point[0])
        deviations = [
            values.std(ddof=1) if plot.spread and len(values) > 1 else 0.0 for _, values in points
        ]
        found.append(
            Series(
                name=", ".join(map(_label, names)),
                x=[x if plot.kind == "line" else _label(x) for x, _ in points],
                y=[round(float(values.mean()), 5) for _, values in points],
                spread=[round(float(np.nan_to_num(value)), 5) for value in deviations],
                panel=_label(names[0]) if len(names) > 1 else "",
            )
        )
    if not found:
        raise NoRows(f"plot {plot.title}: no selected row has {plot.y}")
    return found
