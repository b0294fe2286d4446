"""The tuned kernels of operators beside torch, and beside those of other runs, timed in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from pruner.errors import DataError
from pruner.files import write_json
from pruner.progress import Tell, silent
from pruner.tune.contenders.inputs import save_arrays
from pruner.tune.contenders.lane import Lane
from pruner.tune.contenders.lineup import EAGER, OURS, Library, line_up_kernels
from pruner.tune.contenders.race import Contender, RaceSettings, Timed, race
from pruner.tune.deploy.files import KERNELS_FILE
from pruner.tune.measure.energy import EnergyMeter
from pruner.tune.measure.numerics import inputs as seeded
from pruner.tune.run.tuning import kernel_path
from pruner.tune.workloads import Workload, arguments, by_name

_WORK = "beside"
KERNEL_RACE = RaceSettings(warm_up_s=1.0, rounds=10, turn_s=0.2, most_s=20.0, together=4)


def check_equal(other: Path, ours: Sequence[Workload], theirs: Sequence[Workload]) -> None:
    """Raise `DataError` where a run has none of our tasks, or another program of the same name."""
    known = by_name(theirs)
    both = [task for task in ours if task.name in known]
    if not both:
        raise DataError(f"compare={other}: it has none of {', '.join(task.name for task in ours)}")
    for task in both:
        if task.fingerprint != known[task.name].fingerprint:
            raise DataError(f"compare={other}: its {task.name} is another program")


def set_kernels_beside(
    folder: Path,
    workloads: Sequence[Workload],
    names: Sequence[str],
    others: Sequence[Path],
    *,
    lane: Lane,
    settings: RaceSettings = KERNEL_RACE,
    meter: EnergyMeter | None = None,
    tell: Tell = silent,
) -> dict[str, list[Timed]]:
    """Race every task's kernel; ``kernels_beside.json`` in `folder` keeps what came of it.

    It is written after every task. Outputs are compared with those of torch eager, where it runs;
    `meter`: see :func:`~pruner.tune.contenders.race.race`.

    Raises:
        PrunerError: an unknown name.
    """
    found: dict[str, list[Timed]] = {}
    for workload in workloads:
        tell(f"{workload.name}: beside {', '.join([*names, *(o.name for o in others)])}")
        places = {OURS: folder, **{other.resolve().name: other for other in others}}
        libraries = {name: _kernel(name, place, workload) for name, place in places.items()}
        contenders = _lined_up(workload, names, libraries, folder, lane)
        work = folder / _WORK / workload.name
        found[workload.name] = race(
            contenders, work, settings, reference=EAGER, meter=meter, tell=tell
        )
        content = {**asdict(lane), "reference": EAGER}
        rows = {task: [row.row() for row in timed] for task, timed in found.items()}
        write_json(folder / KERNELS_FILE, {**content, "tasks": rows}, indent=1)
    return found


def _kernel(name: str, folder: Path, workload: Workload) -> Library:
    path = kernel_path(folder, workload.name)
    missing = None if path.is_file() else f"no {path}; run: pruner deploy run={folder}"
    return Library(label=name, path=path, missing=missing)


def _lined_up(
    workload: Workload,
    names: Sequence[str],
    libraries: Mapping[str, Library],
    folder: Path,
    lane: Lane,
) -> list[Contender]:
    *given, output = arguments(workload.module)
    work = folder / _WORK / workload.name
    work.mkdir(parents=True, exist_ok=True)
    inputs = work / "inputs.npz"
    save_arrays(inputs, seeded(given))
    return line_up_kernels(workload.spec, names, libraries, inputs=inputs, output=output, lane=lane)
