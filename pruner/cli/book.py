"""``pruner book``: remake the results of every item, then the page."""

import time
from typing import Any

from omegaconf import DictConfig

from pruner.cli.report import experiments_folder
from pruner.cli.shared import loggers
from pruner.cli.shared.options import several
from pruner.cli.shared.output import say
from pruner.cli.shared.records import record_root
from pruner.cli.shared.runs import continued, open_run
from pruner.errors import PrunerError
from pruner.files import save_metrics
from pruner.paths import sources_folder
from pruner.study.book.items import load_items
from pruner.study.book.page import HTML, build_page, write_page
from pruner.study.book.remake import chosen, publish, remake

COMMITTED = ("full", "alone", "gpu")  # presets whose results the committed page shows


def book(config: DictConfig) -> dict[str, Any]:
    """Run the command; return the object of the last line."""
    start = time.perf_counter()
    config, earlier = continued(config)
    experiments = experiments_folder(config.experiments)
    items = chosen(load_items(experiments), several(config.only), config.preset)
    root = record_root(config.data).path.resolve()
    folder = open_run(config, "book", config.preset, earlier)
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
    rows = [
        {"item": item.name, "number": one.number.name, "ours": one.value, "own": one.own,
         "chance": one.chance, "paper": one.number.paper, "inside": one.inside}
        for item, one in page.numbers
    ]  # fmt: skip
    numbers = {f"{row['item']}/{row['number']}": row["ours"] for row in rows}
    loggers.log_result(config, folder, numbers, rows, under="book", tags=[config.preset])
    return result
