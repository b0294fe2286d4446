"""``python -m pruner.cli.book``: remake the results of every item, then the page."""

import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pruner.cli.commands import Commands
from pruner.cli.common import (
    load_metrics,
    new_run_folder,
    resumed_config,
    run_door,
    save_config,
    save_metrics,
    say,
)
from pruner.cli.dataset import record_root
from pruner.cli.report import HTML, experiments_folder, write_page
from pruner.cli.results_book.items import Item, load_items
from pruner.cli.results_book.page import build_page
from pruner.errors import PrunerError

COMMITTED = ("full", "alone")  # presets whose results the committed page shows


def book(config: DictConfig) -> dict[str, Any]:
    """Run the command; returns the object of the last line."""
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
    # The longest first: the last worker then has the least left to do.
    items.sort(key=lambda item: -item.minutes.get(config.preset, 0))
    with Commands() as commands:
        run = partial(run_item, preset=config.preset, root=root, folder=folder, commands=commands)
        ends = dict(commands.each(items, run, config.num_workers))
    failed = [item.name for item in items if "error" in ends[item.name]]
    if config.preset in COMMITTED:
        publish([item for item in items if item.name not in failed], folder, experiments)
        write_page(build_page(load_items(experiments)), experiments)
    ranges = " and ".join(COMMITTED)
    note = f"Preset {config.preset}; the expected ranges are those of the presets {ranges}."
    write_page(build_page(items, note, folder), folder)
    result = {
        "run_dir": str(folder),
        "html": str(folder / HTML),
        "items": {item.name: ends[item.name] for item in items},
        "seconds": round(time.perf_counter() - start, 1),
    }
    if failed:
        raise PrunerError(f"failed: {', '.join(failed)}; logs are in {folder}; resume={folder}")
    save_metrics(folder, result)
    return result


def chosen(items: Sequence[Item], names: Sequence[str] | None, preset: str) -> list[Item]:
    """The items to run: those named, or all that have the preset.

    Raises `PrunerError` for an unknown name or preset, with the known ones.
    """
    known = {item.name: item for item in items}
    unknown = sorted(set(names or ()) - set(known))
    if unknown:
        raise PrunerError(f"only={unknown}: unknown; known: {', '.join(known)}")
    for name in names or ():
        if preset not in known[name].run:
            raise PrunerError(f"preset={preset}: {name} has only {', '.join(known[name].run)}")
    picked = [known[name] for name in names or known if preset in known[name].run]
    if not picked:
        presets = sorted({preset for item in items for preset in item.run})
        raise PrunerError(f"preset={preset}: unknown; known: {', '.join(presets)}")
    return picked


def run_item(
    item: Item, preset: str, root: Path, folder: Path, commands: Commands
) -> tuple[str, Mapping[str, Any]]:
    """Run the commands of one item, what ended well not again; its name and how it ended."""
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
    with (out / "log.txt").open("w", encoding="utf-8") as log:
        for command in item.run[preset]:
            code = commands.run(command.format(**quoted), log)
            if code:
                say(f"{item.name}: exit code {code}, see {out / 'log.txt'}")
                return item.name, {"error": code}
    end = {"seconds": round(time.perf_counter() - start, 1)}
    save_metrics(out, end)
    say(f"{item.name}: {end['seconds']:g} s")
    return item.name, end


def publish(items: Sequence[Item], folder: Path, experiments: Path) -> None:
    """Replace the result files of finished items, and what else their folders already have."""
    for item in items:
        made, there = folder / item.name, experiments / item.name
        names = {path.name for path in made.iterdir() if (there / path.name).is_file()}
        names |= {name for name in item.results if Path(name).parts[0] != ".."}
        for name in sorted(names):
            if (made / name).is_file():
                (there / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(made / name, there / name)


def main() -> None:
    """Open the door."""
    run_door("book", book)


if __name__ == "__main__":
    main()
