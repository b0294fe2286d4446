"""``pruner book``: remake the results of every item, then the page."""

import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pruner.cli.report import experiments_folder
from pruner.cli.shared import loggers
from pruner.cli.shared.options import several
from pruner.cli.shared.output import say
from pruner.cli.shared.records import record_root
from pruner.cli.shared.runs import continued, open_run
from pruner.commands import ONE_THREAD, Commands
from pruner.errors import PrunerError, check_chosen
from pruner.files import load_metrics, save_metrics
from pruner.paths import sources_folder
from pruner.study.book.items import Item, load_items
from pruner.study.book.page import HTML, build_page, write_page

COMMITTED = ("full", "alone", "gpu")  # presets whose results the committed page shows
Ends = dict[str, Mapping[str, Any]]  # item to {"seconds": ...} or {"error": exit code}


def book(config: DictConfig) -> dict[str, Any]:
    """Run the command; return the object of the last line."""
    start = time.perf_counter()
    config, earlier = continued(config)
    experiments = experiments_folder(config.experiments)
    items = chosen(load_items(experiments), several(config.only), config.preset)
    root = record_root(config.data).path.resolve()
    folder = open_run(config, "book", config.preset, earlier)
    say(f"{len(items)} items in {folder}; if interrupted: resume={folder}")
    # The longest first: the last worker then has the least left to do.
    ordered = sorted(items, key=lambda item: -item.minutes.get(config.preset, 0))
    with Commands(sources_folder(), ONE_THREAD) as commands:
        run = partial(_run, preset=config.preset, root=root, folder=folder, commands=commands)
        ended = dict(commands.each(ordered, run, config.num_workers))
    ends: Ends = {item.name: ended[item.name] for item in ordered}
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


def chosen(items: Sequence[Item], names: Sequence[str] | None, preset: str) -> list[Item]:
    """The named items, or all with the preset; raises `PrunerError` for unknown names."""
    known = {item.name: item for item in items}
    check_chosen("only", names or (), known)
    for name in names or ():
        if preset not in known[name].run:
            raise PrunerError(f"preset={preset}: {name} has only {', '.join(known[name].run)}")
    check_chosen("preset", [preset], sorted({preset for item in items for preset in item.run}))
    return [known[name] for name in dict.fromkeys(names or known) if preset in known[name].run]


def _run(
    item: Item, preset: str, root: Path, folder: Path, commands: Commands
) -> tuple[str, Mapping[str, Any]]:
    out = (folder / item.name).resolve()
    finished = load_metrics(out) if out.is_dir() else None
    if finished is not None:
        say(f"{item.name}: finished before")
        return item.name, finished
    # What an interrupted start left is not part of the results.
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    places = {"python": sys.executable, "root": root, "data": root.parent, "out": out}
    quoted = {name: shlex.quote(str(place)) for name, place in places.items()}
    start = time.perf_counter()
    say(f"{item.name} starts, about {item.minutes.get(preset, 0):g} minutes")
    for command in item.run[preset]:
        code = commands.run(command.format(**quoted), out / "log.txt", append=True)
        if code:
            say(f"{item.name}: exit code {code}, see {out / 'log.txt'}")
            return item.name, {"error": code}
    end = {"seconds": round(time.perf_counter() - start, 1)}
    save_metrics(out, end)
    say(f"{item.name}: {end['seconds']:g} s")
    return item.name, end


def publish(items: Sequence[Item], folder: Path, experiments: Path) -> None:
    """Replace the listed results of finished items, and other files that are there already."""
    for item in items:
        made, there = folder / item.name, experiments / item.name
        names = {path.name for path in made.iterdir() if (there / path.name).is_file()}
        names |= {name for name in item.results if Path(name).parts[0] != ".."}
        for name in sorted(names):
            if (made / name).is_file():
                (there / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(made / name, there / name)
