"""``python report.py``: one page, HTML and Markdown, from the results under ``experiments/``."""

import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pruner.cli.common import run_door, say
from pruner.cli.dataset import REPOSITORY
from pruner.cli.results_book.items import load_items
from pruner.cli.results_book.page import Page, build_page, html_page, markdown, without_drawings
from pruner.errors import PrunerError

HTML, MARKDOWN = "report.html", "report.md"


def report(config: DictConfig) -> dict[str, Any]:
    """Run the command; returns the object of the last line."""
    start = time.perf_counter()
    folder = experiments_folder(config.experiments)
    out = Path(config.out) if config.out else folder
    items = load_items(folder)
    page = build_page(items, config.note, Path(config.results) if config.results else None)
    if config.check:
        check_page(page, out)
    else:
        write_page(page, out)
    for line in page.outside:
        say(line)
    return {
        "html": str(out / HTML),
        "markdown": str(out / MARKDOWN),
        "items": len(items),
        "numbers": {f"{item.name}/{one.number.name}": one.value for item, one in page.numbers},
        "outside": len(page.outside),
        "seconds": round(time.perf_counter() - start, 2),
    }


def experiments_folder(name: str) -> Path:
    """The folder itself, or the one of that name beside the sources."""
    path, beside = Path(name), REPOSITORY / name
    return path if path.is_dir() or not beside.is_dir() else beside


def write_page(page: Page, out: Path) -> None:
    """Write both pages and the plots of the Markdown one; drawings that left the book go too."""
    plots = out / "plots"
    plots.mkdir(parents=True, exist_ok=True)
    for path in plots.glob("*.svg"):
        path.unlink()
    for name, drawing in page.drawings.items():
        (out / name).write_text(drawing, encoding="utf-8")
    (out / MARKDOWN).write_text(markdown(page), encoding="utf-8")
    (out / HTML).write_text(html_page(page), encoding="utf-8")


def check_page(page: Page, out: Path) -> None:
    """Raise a PrunerError where the page in `out` is not the one that the results give."""
    wanted = {MARKDOWN: markdown(page), HTML: without_drawings(html_page(page))}
    for name, text in wanted.items():
        path = out / name
        there = path.read_text(encoding="utf-8") if path.is_file() else ""
        if without_drawings(there) != text:
            raise PrunerError(f"{path} is not what the results give; write it anew: report.py")
    for block in page.blocks:
        path = out / block.text
        if block.kind == "plot" and not (
            path.is_file() and f"data-of='{block.mark}'" in path.read_text(encoding="utf-8")
        ):
            raise PrunerError(f"{path} is not what the results give; write it anew: report.py")
    if page.outside:
        raise PrunerError("; ".join(page.outside))


def main() -> None:
    """Open the door."""
    run_door("report", report)


if __name__ == "__main__":
    main()
