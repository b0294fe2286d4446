"""Remake the results of items: run commands, then copy the shown files."""

import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pruner.commands import ONE_THREAD, Commands
from pruner.errors import PrunerError, check_chosen
from pruner.files import load_metrics, save_metrics
from pruner.progress import Log
from pruner.study.book.items import Item

Ends = dict[str, Mapping[str, Any]]  # item to {"seconds": ...} or {"error": exit code}


def chosen(items: Sequence[Item], names: Sequence[str] | None, preset: str) -> list[Item]:
    """The named items, or all with the preset; raises `PrunerError` for unknown names."""
    known = {item.name: item for item in items}
    check_chosen("only", names or (), known)
    for name in names or ():
        if preset not in known[name].run:
            raise PrunerError(f"preset={preset}: {name} has only {', '.join(known[name].run)}")
    check_chosen("preset", [preset], sorted({preset for item in items for preset in item.run}))
    return [known[name] for name in dict.fromkeys(names or known) if preset in known[name].run]


def remake(
    items: Sequence[Item],
    preset: str,
    *,
    root: Path,
    folder: Path,
    place: Path,
    num_workers: int,
    log: Log,
) -> Ends:
    """Run unfinished items' commands in `place`; results go to ``<folder>/<item>/``."""
    # The longest first: the last worker then has the least left to do.
    ordered = sorted(items, key=lambda item: -item.minutes.get(preset, 0))
    with Commands(place, ONE_THREAD) as commands:
        run = partial(_run, preset=preset, root=root, folder=folder, commands=commands, log=log)
        ends = dict(commands.each(ordered, run, num_workers))
    return {item.name: ends[item.name] for item in ordered}


def _run(
    item: Item, preset: str, root: Path, folder: Path, commands: Commands, log: Log
) -> tuple[str, Mapping[str, Any]]:
    out = (folder / item.name).resolve()
    finished = load_metrics(out) if out.is_dir() else None
    if finished is not None:
        log(f"{item.name}: finished before")
        return item.name, finished
    # What an interrupted start left is not part of the results.
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    places = {"python": sys.executable, "root": root, "data": root.parent, "out": out}
    quoted = {name: shlex.quote(str(place)) for name, place in places.items()}
    start = time.perf_counter()
    log(f"{item.name} starts, about {item.minutes.get(preset, 0):g} minutes")
    for command in item.run[preset]:
        code = commands.run(command.format(**quoted), out / "log.txt", append=True)
        if code:
            log(f"{item.name}: exit code {code}, see {out / 'log.txt'}")
            return item.name, {"error": code}
    end = {"seconds": round(time.perf_counter() - start, 1)}
    save_metrics(out, end)
    log(f"{item.name}: {end['seconds']:g} s")
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
