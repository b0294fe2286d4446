"""``python report.py``: write a page of the results under ``experiments/``."""

import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pruner.cli.shared.output import say
from pruner.cli.shared.progress import track
from pruner.errors import PrunerError
from pruner.paths import sources_folder
from pruner.study.book.items import load_items
from pruner.study.book.page import HTML, MARKDOWN, build_page, check_page, write_page


def report(config: DictConfig) -> dict[str, Any]:
    """Run the command; return the object of the last line."""
    start = time.perf_counter()
    folder = experiments_folder(config.experiments)
    out = Path(config.out) if config.out else folder
    items = load_items(folder)
    results = Path(config.results) if config.results else None
    if results is not None and not results.is_dir():
        raise PrunerError(f"results={results}: no such folder; name one that `make book` wrote")
    page = build_page(items, config.note, results, track)
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
    """Return the named folder, or the folder beside the sources."""
    path, beside = Path(name), sources_folder() / name
    return path if path.is_dir() or not beside.is_dir() else beside
