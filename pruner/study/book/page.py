"""The book's page: headings, paragraphs, tables and plots in Markdown and HTML."""

import html
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import pandas as pd

from pruner.errors import PrunerError
from pruner.files import write_text
from pruner.progress import Tracker, pass_on
from pruner.study.book.items import Item
from pruner.study.book.key_numbers import (
    KeyNumber,
    NoRows,
    TextRows,
    measure,
    plot_series,
    read_results,
    table_cells,
)
from pruner.study.book.plots import described, digest, svg
from pruner.study.markdown import markdown_table
from pruner.study.plots import short

HTML, MARKDOWN = "report.html", "report.md"
_Part = TypeVar("_Part")
_Made = TypeVar("_Made")
INTRO = (
    "`python report.py` writes this page from the files of `experiments/`; nobody edits it. A "
    "section is a table, a figure or a claim, with the command that remakes its results. `make "
    "book DATA=DIR` remakes all sections but two kinds: `PRESET=alone` needs an idle machine, "
    "`PRESET=gpu` a GPU. Ours is the default of this project, not a setting of the paper. Beside "
    "a key number stands at least one of three references: the rival's own value, chance on the "
    "same programs, or the paper's value. If all three are lacking, the table of the section "
    "gives the reason. A factor of time also shows the values that it averages (0: the target was "
    "never reached) and the number of runs that reached the target. An expected range comes from "
    "the source in brackets, never from our own results. `experiments/README.md` explains the "
    "metrics."
)
VERDICT = (
    "A verdict is on the claim of the paper, not on its number: devices, records and budgets "
    "differ from the paper's. Undecided means that the difference is within the spread over "
    "seeds."
)
VALUES = ("ours", "values averaged", "the rival's own", "chance", "paper", "expected")
SHOWN = {"python": "python", "root": "DATA_ROOT", "data": "DATA", "out": "OUT"}
STYLE = (
    ":root{color-scheme:light dark;--ink:#24292f;--paper:#fff;--line:#d8dee4;--soft:#f3f5f7;"
    "--shade:#8c959f}"
    "@media(prefers-color-scheme:dark){:root{--ink:#d6dde5;--paper:#14181d;--line:#3a424c;"
    "--soft:#1e242b;--shade:#77818c}}"
    "body{font:15px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:var(--ink);background:var(--paper)}"
    ".wide{overflow-x:auto;margin:1rem 0;background:"  # a shadow at an edge that hides columns
    "linear-gradient(90deg,var(--paper) 50%,transparent) left/4rem 100% local,"
    "linear-gradient(270deg,var(--paper) 50%,transparent) right/4rem 100% local,"
    "linear-gradient(90deg,var(--shade),transparent) left/1.2rem 100%,"
    "linear-gradient(270deg,var(--shade),transparent) right/1.2rem 100%;"
    "background-repeat:no-repeat}table{border-collapse:collapse;font-size:.9em}"
    "td,th{border:1px solid var(--line);padding:.2rem .6rem;text-align:left}"
    "code,pre{background:var(--soft)}pre{padding:.6rem;white-space:pre-wrap}p,pre,summary"
    "{overflow-wrap:anywhere}summary{cursor:pointer}svg{max-width:100%;height:auto}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageBlock:
    """A piece of the page.

    `text` has Markdown's backticks; for a plot it is the file's name. A plot has its SVG in
    `drawing`, its digest in `mark`, and its description in `about`. A table with a `text` is folded
    behind that line; names in its columns `names` are shortened.
    """

    kind: Literal["title", "heading", "text", "code", "table", "plot"]
    text: str = ""
    cells: TextRows | None = None
    drawing: str = ""
    mark: str = ""
    about: str = ""
    names: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All blocks of the book, and its key numbers."""

    blocks: Sequence[PageBlock]
    numbers: Sequence[tuple[Item, KeyNumber]]

    @property
    def outside(self) -> list[str]:
        """Key numbers that are not in their expected range, in words."""
        return [
            f"{item.name}, {one.number.name}: {one.value:.4g} is outside {_range(one)}"
            for item, one in self.numbers
            if not one.inside
        ]

    @property
    def drawings(self) -> dict[str, str]:
        """File name to SVG text, for the Markdown page."""
        return {block.text: block.drawing for block in self.blocks if block.kind == "plot"}


def build_page(
    items: Sequence[Item], note: str = "", results: Path | None = None, track: Tracker = pass_on
) -> Page:
    """Read the results of every item and lay out the page.

    With `results`, a folder of other results, missing results are left out; in the book itself a
    number, table or plot without rows is a PrunerError, but for an item in parts.
    """
    sections: list[PageBlock] = []
    numbers: list[tuple[Item, KeyNumber]] = []
    waiting = []
    for item in track(items, "items of the book", len(items)):
        rows = read_results(item, results)
        commands = "\n".join(item.run.get("full") or next(iter(item.run.values())))
        minutes = ", ".join(f"{name} preset {value:g}" for name, value in item.minutes.items())
        sections += [
            heading(f"{item.title} ({item.paper})"),
            paragraph(" ".join(item.shows.split())),
            PageBlock(kind="code", text=commands.format(**SHOWN)),
            paragraph(f"Minutes on two cores: {minutes}. More in `{item.name}/`."),
        ]
        if item.verdict and results is None:
            sections.append(paragraph(f"Verdict: {item.verdict}. {item.finding}"))
        if rows is None:
            waiting.append(item.title)
            sections.append(paragraph("No results yet: run the command above."))
            continue
        complete = results is None and not item.in_parts
        measured, body, lacking = _contents(item, rows, complete=complete)
        sections += body
        if lacking and results is None:
            sections.append(paragraph(f"Not run yet: {'; '.join(lacking)}."))
        numbers += [(item, one) for one in measured]
    top = [PageBlock(kind="title", text="Results book"), paragraph(INTRO)]
    top += [paragraph(note)] if note else []
    top += _verdicts(items) if results is None else []
    top += [PageBlock(kind="table", text="All key numbers", cells=_summary(numbers))]
    top.append(paragraph(_duration(items)))
    if waiting:
        top.append(paragraph(f"Without results yet: {', '.join(waiting)}."))
    return Page(blocks=[*top, *sections], numbers=numbers)


def paragraph(text: str) -> PageBlock:
    """A block of text."""
    return PageBlock(kind="text", text=text)


def heading(text: str) -> PageBlock:
    """A heading of the second level."""
    return PageBlock(kind="heading", text=text)


def _verdicts(items: Sequence[Item]) -> Iterable[PageBlock]:
    for item in items:
        if item.summary:
            yield paragraph(item.summary)
    cells = [[i.title, i.paper, i.verdict, i.finding] for i in items if i.verdict]
    if cells:
        yield paragraph(VERDICT)
        heads = ["item", "of the paper", "verdict", "finding"]
        yield PageBlock(kind="table", cells=[heads, *cells])


def _duration(items: Sequence[Item]) -> str:
    """Minutes with two workers: half the sum or the longest; "alone": a single worker."""
    totals = []
    for preset in dict.fromkeys(name for item in items for name in item.minutes):
        each = [item.minutes.get(preset, 0) for item in items]
        share = 1 if preset == "alone" else 2
        totals.append(f"{preset} preset {max(sum(each) / share, *each):.0f} minutes")
    return f"All items on two cores, one after another on each: about {', '.join(totals)}."


def _summary(numbers: Sequence[tuple[Item, KeyNumber]]) -> TextRows:
    cells = [["item", "of the paper", "key number", *VALUES]]
    above = ("", "")
    for item, one in numbers:
        title, of = item.title, one.number.of or item.paper
        shown = ["" if title == above[0] else title, "" if (title, of) == above else of]
        cells.append([*shown, one.number.name, *_values(one)])
        above = (title, of)
    return cells


def _values(one: KeyNumber) -> list[str]:
    paper = "" if one.number.paper is None else f"{one.number.paper:g}"
    verdict = "" if one.inside else " (outside)"
    chance = "" if one.chance is None else f"{one.chance:.3f}"
    own = "" if one.own is None else f"{one.own:.3f}"
    own += f" ({one.rival})" if own and one.rival else ""
    parts = ", ".join(f"{value:.3g} ({name})" for name, value in one.parts.items())
    if one.reached is not None:
        parts += f"; reached in {one.reached[0]} of {one.reached[1]}"
    return [f"{one.value:.3f}{verdict}", parts, own, chance, paper, _range(one)]


def _range(one: KeyNumber) -> str:
    if one.expected is None:
        return ""
    low, high = one.expected
    return f"{low:.3g} to {high:.3g} ({one.number.expected_from})"


def _contents(
    item: Item, rows: pd.DataFrame, *, complete: bool
) -> tuple[list[KeyNumber], list[PageBlock], list[str]]:
    """Key numbers, tables and plots of an item, and names of those without rows."""
    lacking: list[str] = []

    def made(
        parts: Iterable[tuple[str, _Part]], make: Callable[[_Part], _Made]
    ) -> list[tuple[_Part, _Made]]:
        found = []
        for name, part in parts:
            try:
                found.append((part, make(part)))
            except NoRows as error:
                if complete:
                    raise PrunerError(f"{item.folder}: {error}") from error
                lacking.append(name)
        return found

    measured = made(((n.name, n) for n in item.numbers), lambda number: measure(number, rows))
    tables = made(((t.title, t) for t in item.tables), lambda table: table_cells(table, rows))
    plots = made(((p.title, p) for p in item.plots), lambda plot: plot_series(plot, rows))
    blocks = []
    if measured:
        cells = [["key number", *VALUES, "why they may differ"]]
        for number, one in measured:
            why = "; ".join(filter(None, (number.differs, number.alone)))
            cells.append([number.name, *_values(one), why])
        blocks.append(PageBlock(kind="table", cells=cells))
    for table, cells in tables:
        blocks += [paragraph(f"{table.title}:"), PageBlock(kind="table", cells=cells)]
    for n, (plot, series) in enumerate(plots):
        block = PageBlock(
            kind="plot",
            text=f"plots/{item.name}-{n}.svg",
            drawing=svg(plot, series),
            mark=digest(plot, series),
            about=described(plot, series),
        )
        blocks.append(block)
    return [one for _, one in measured], blocks, lacking


def markdown(page: Page) -> str:
    """The page as Markdown; plots are separate files."""
    return "\n\n".join(map(_markdown_block, page.blocks)) + "\n"


def _markdown_block(block: PageBlock) -> str:
    match block.kind:
        case "title":
            return f"# {block.text}"
        case "heading":
            return f"## {block.text}"
        case "code":
            return "\n".join(f"    {line}" for line in block.text.splitlines())
        case "plot":
            return f"![{block.about}]({block.text})"
        case "table":
            head, *body = block.cells or [[]]
            table = markdown_table(head, body)
            folded = f"<details><summary>{block.text}</summary>\n\n{table}\n\n</details>"
            return folded if block.text else table
        case _:
            return block.text


def html_page(title: str, blocks: Sequence[PageBlock]) -> str:
    """Blocks as one HTML file that needs nothing else."""
    body = "\n".join(map(_html_block, blocks))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title>"
        f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _html_block(block: PageBlock) -> str:
    match block.kind:
        case "title":
            return f"<h1>{_inline(block.text)}</h1>"
        case "heading":
            return f"<h2>{_inline(block.text)}</h2>"
        case "code":
            return f"<pre>{html.escape(block.text)}</pre>"
        case "plot":
            return block.drawing
        case "table":
            head, *body = block.cells or [[]]
            rows = [_html_row(head, "th"), *(_html_row(row, "td", block.names) for row in body)]
            table = f'<div class="wide"><table>{"".join(rows)}</table></div>'
            folded = f"<details><summary>{_inline(block.text)}</summary>{table}</details>"
            return folded if block.text else table
        case _:
            return f"<p>{_inline(block.text)}</p>"


def _html_row(cells: Sequence[str], tag: str, names: Sequence[int] = ()) -> str:
    row = ""
    for n, cell in enumerate(cells):
        shown = short(cell) if n in names else cell
        title = "" if shown == cell else f' title="{html.escape(cell)}"'
        row += f"<{tag}{title}>{_inline(shown)}</{tag}>"
    return f"<tr>{row}</tr>"


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))


def write_page(page: Page, out: Path) -> None:
    """Write the pages and plots; plots of removed blocks go, other files stay."""
    plots = out / "plots"
    plots.mkdir(parents=True, exist_ok=True)
    drawn = {out / name: drawing for name, drawing in page.drawings.items()}
    for path, drawing in drawn.items():
        write_text(path, drawing)
    write_text(out / MARKDOWN, markdown(page))
    write_text(out / HTML, html_page("Results book", page.blocks))
    for path in plots.glob("*.svg"):
        if path not in drawn and b"data-of='" in path.read_bytes():  # a plot of an earlier page
            path.unlink()


def check_page(page: Page, out: Path) -> None:
    """Raise a PrunerError where the page in `out`, or a plot's digest, is outdated."""
    path = out / MARKDOWN
    there = path.read_text(encoding="utf-8") if path.is_file() else ""
    if there != markdown(page):
        raise PrunerError(f"{path} differs from the results; write it again: report.py")
    for block in page.blocks:
        path = out / block.text
        if block.kind == "plot" and not (
            path.is_file() and f"data-of='{block.mark}'" in path.read_text(encoding="utf-8")
        ):
            raise PrunerError(f"{path} differs from the results; write it again: report.py")
    if page.outside:
        raise PrunerError("; ".join(page.outside))
