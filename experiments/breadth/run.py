"""Try networks that people bring: which become right libraries, and how fast is the draft.

    python -m experiments.breadth.run                        all that is installed
    python -m experiments.breadth.run kernelbench=DIR        and DIR/level1 to level3 of KernelBench
    python -m experiments.breadth.run networks=[swin,gpt]    only names that contain one of these

Sources are torchvision, timm, transformers and KernelBench's problems, scaled down; none of them is
a dependency. Each network is drafted (nothing is measured), its library is compared with torch, and
both are timed in turns. A network that was tried is not tried again, so the script can be stopped
and started at will; again=true tries those anew that gave no right library. The tables go to out=.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.breadth.sources import OF_IMAGES, names
from pruner.cli.shared.output import say
from pruner.cli.shared.progress import track
from pruner.cli.shared.script import run_script
from pruner.errors import PrunerError
from pruner.files import merged_table, write_table
from pruner.processes import Worker
from pruner.study.grid import Job, results
from pruner.study.markdown import markdown_table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
JOBS = "experiments.breadth.jobs"
RIGHT, FAULT = "right", "fault"


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above.

    ``draft=false``: no schedules, no timing; ``compile``: time torch.compile, too; `limit_s`:
    seconds for one network; `image`: pixels per side where a network of torchvision or timm takes
    them, by default its own.
    """

    sources: list[str] = field(
        default_factory=lambda: ["kernelbench", "torchvision", "timm", "transformers"]
    )
    kernelbench: str | None = None
    networks: list[str] = field(default_factory=list)
    image: int | None = None
    draft: bool = True
    compile: bool = True
    limit_s: float = 600.0
    again: bool = False
    work: str = str(ROOT / "outputs" / "experiments-breadth")
    out: str = str(HERE)


def jobs(options: Options, worker: Worker) -> Iterator[Job]:
    """Yield a job a network."""
    folder = None if options.kernelbench is None else Path(options.kernelbench).resolve()
    work = Path(options.work).resolve()
    for source in options.sources:
        for name in names(source, folder):
            if options.networks and not any(part in name for part in options.networks):
                continue
            place = work / ("draft" if options.draft else "build") / source / name.replace("/", "-")
            if options.image is not None and source in OF_IMAGES:
                place /= f"image-{options.image}"

            def run(source: str = source, name: str = name, place: Path = place) -> dict[str, Any]:
                place.mkdir(parents=True, exist_ok=True)
                run_folder = place / f"run-{len(list(place.glob('run-*')))}"
                how = (options.image, run_folder, options.draft, options.compile)
                reply = worker.call(
                    "attempt", source, name, folder, *how, timeout_s=options.limit_s
                )
                found = reply.value or {"outcome": FAULT, "reason": reply.line}
                return {"source": source, "network": name, **found}

            job = Job(name=f"{source} {name}", run=run, leaves=place / "row.json")
            if options.again and job.result is not None and job.result["outcome"] != RIGHT:
                (place / "row.json").unlink()
            yield job


def run(options: Options) -> dict[str, Any]:
    """Try all networks and write the tables."""
    with Worker(JOBS, method="spawn") as worker:
        found = list(jobs(options, worker))
        if not found:
            raise PrunerError("no source is at hand: give kernelbench=DIR, or install torchvision")
        rows = list(track(results(found), "networks", len(found)))
    rows = [{"image": "", **row, "reason": row.get("reason") or ""} for row in rows]
    place = Path(options.out) / "results.csv"
    now = {(row["source"], row["network"]) for row in rows}
    write_table(place, [
        row
        for row in merged_table(place, rows, ("source", "network", "image"))
        # an earlier failure, which has no image, is over
        if row in rows or row["image"] or (row["source"], row["network"]) not in now
    ])  # fmt: skip
    table = pd.DataFrame(rows)
    counts = table.groupby(["source", "outcome"], sort=False).size().unstack(fill_value=0)
    say(markdown_table(["source", *counts], [[name, *row] for name, row in counts.iterrows()]))
    return {"tried": len(table), **table.outcome.value_counts().to_dict()}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
