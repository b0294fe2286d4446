"""``pruner book``: remake the results of every item, then the page."""

import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pruner.cli.report import experiments_folder
from pruner.cli.shared import loggers
from pruner.cli.shared.options import build, plain
from pruner.cli.shared.output import say
from pruner.cli.shared.records import record_root
from pruner.cli.shared.runs import new_run_folder, resumed_config, save_config
from pruner.errors import PrunerError
from pruner.files import save_metrics
from pruner.paths import sources_folder
from pruner.study.book.items import load_items
from pruner.study.book.page import HTML, Page, build_page, write_page
from pruner.study.book.remake import chosen, publish, remake

COMMITTED = ("full", "alone", "gpu")  # presets whose results the committed page shows


def book(config: DictConfig) -> dict[str, Any]:
    """Run the command; return the object of the last line."""
    start = time.perf_counter()
    earlier = Path(config.resume) if config.resume else None
    if earlier is not None:
        config = resumed_config(earlier, config)
    experiments = experiments_folder(config.experiments)
    items = chosen(load_items(experiments), config.only, config.preset)
    root = record_root(config.data).path.resolve()
    folder = earlier or new_run_folder(Path(config.outputs), "book", config.run_id, config.preset)
    save_config(folder, config)
    say(f"{len(items)} items in {folder}; if interrupted: resume={folder}")
    ends = remake(
        items,
        config.preset,
        root=root,
        folder=folder,
        place=sources_folder(),
        num_workers=config.num_workers,
        log=say,
    )
    failed = [name for name, end in ends.items() if "error" in end]
    if config.preset in COMMITTED:
        publish([item for item in items if item.name not in failed], folder, experiments)
        write_page(build_page(load_items(experiments)), experiments)
    ranges = " and ".join(COMMITTED)
    note = f"Preset {config.preset}; the expected ranges are those of the presets {ranges}."
    page = build_page(items, note, folder)
    write_page(page, folder)
    result = {
        "run_dir": str(folder),
        "html": str(folder / HTML),
        "items": ends,
        "seconds": round(time.perf_counter() - start, 1),
    }
    if failed:
        raise PrunerError(f"failed: {', '.join(failed)}; logs are in {folder}; resume={folder}")
    save_metrics(folder, result)
    _log(config, folder, page)
    return result


def _log(config: DictConfig, folder: Path, page: Page) -> None:
    """Log every key number with its comparisons."""
    rows = [
        {"item": item.name, "number": one.number.name, "ours": one.value, "own": one.own,
         "chance": one.chance, "paper": one.number.paper, "inside": one.inside}
        for item, one in page.numbers
    ]  # fmt: skip
    numbers = {f"{row['item']}/{row['number']}": row["ours"] for row in rows}
    about = loggers.About(config=plain(config), tags=[config.preset])
    loggers.log_result(build(config.logger), folder, about, numbers, rows, under="book")
