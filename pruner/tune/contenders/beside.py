"""A tuned network beside what a user would run instead, as one call and one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.files import as_written, read_json, write_json
from pruner.models.analyzer.analyzer import Analyzer
from pruner.progress import Tell, silent
from pruner.tune.contenders.inputs import write_inputs
from pruner.tune.contenders.lane import CPU, Lane
from pruner.tune.contenders.libraries import check_others, run_libraries
from pruner.tune.contenders.lineup import EAGER, ONNXRUNTIME, Library, check_names, line_up
from pruner.tune.contenders.race import RaceSettings, Timed, race
from pruner.tune.deploy.files import BESIDE_FILE
from pruner.tune.deploy.network import cannot_run
from pruner.tune.measure.energy import EnergyMeter
from pruner.tune.measure.measurer import Platform
from pruner.tune.networks.request import REQUEST, NetworkRequest
from pruner.tune.networks.source import NetworkSource

_WORK = "beside"  # its folder of inputs, outputs and logs


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Contenders timed in turns in equal lanes.

    ``rows`` have the keys of :meth:`~pruner.tune.contenders.race.Timed.row`; relative errors are
    against the outputs of ``reference``.
    """

    rows: Sequence[Mapping[str, Any]]
    lane: Lane
    reference: str

    @property
    def ran(self) -> list[Mapping[str, Any]]:
        """Those that did not fail, in order."""
        return [row for row in self.rows if row["error"] is None]


def set_beside(
    source: NetworkSource,
    names: Sequence[str],
    libraries: Mapping[str, Library],
    folder: Path,
    *,
    lane: Lane,
    half: bool = False,
    settings: RaceSettings = RaceSettings(),  # noqa: B008  # frozen
    meter: EnergyMeter | None = None,
    tell: Tell = silent,
) -> list[Timed]:
    """Time a network's libraries and the named contenders; ``beside.json`` in `folder` keeps it.

    `libraries`: see :func:`~pruner.tune.contenders.libraries.run_libraries`; ``half``:
    :func:`~pruner.tune.contenders.lineup.line_up`. Outputs are compared
    with those of torch, of a network that is an ONNX file with those of onnxruntime.

    Raises:
        PrunerError: an unknown name, or a network that cannot be made.
    """
    work = folder / _WORK
    inputs = write_inputs(source, work / "inputs.npz")
    reference = ONNXRUNTIME if source.is_onnx else EAGER
    contenders = line_up(source, names, libraries, inputs=inputs, lane=lane, half=half)
    found = race(contenders, work, settings, reference=reference, meter=meter, tell=tell)
    rows = [row.row() for row in found]
    content = {**asdict(lane), "reference": reference, "contenders": rows}
    write_json(folder / BESIDE_FILE, content, indent=1)
    return found


def set_run_beside(
    folder: Path,
    names: Sequence[str],
    others: Sequence[Path],
    *,
    platform: Platform,
    analyzer: Analyzer | None,
    settings: RaceSettings = RaceSettings(),  # noqa: B008  # frozen
    meter: EnergyMeter | None = None,
    tell: Tell = silent,
) -> list[Timed]:
    """The deployed network of a run folder beside the named contenders and those of other runs.

    Raises:
        PrunerError: a network that cannot run here, names and runs that do not fit, and see
            :func:`set_beside`.
    """
    reason = cannot_run(platform)
    if reason is not None:
        raise PrunerError(f"{folder}: no comparison is possible, {reason}; add beside=[]")
    check_names(names)
    check_others(folder, others)
    libraries = run_libraries(
        folder, names, others, folder / _WORK, platform=platform, analyzer=analyzer, tell=tell
    )
    request = NetworkRequest.read(folder / REQUEST)
    return set_beside(
        request.source,
        names,
        libraries,
        folder,
        lane=Lane.of(platform),
        half=request.form.halves,
        settings=settings,
        meter=meter,
        tell=tell,
    )


def read_beside(folder: Path) -> SideBySide | None:
    """What `set_beside` found in a run folder, None where it was not asked."""
    return read_comparison(folder / BESIDE_FILE)


def read_comparison(path: Path) -> SideBySide | None:
    """The file of `set_beside`, or a copy of it; None where there is none."""
    if not path.is_file():
        return None
    with as_written(path):
        content = read_json(path, dict)
        lane = Lane(threads=content["threads"], device=content.get("device", CPU))
        return SideBySide(rows=content["contenders"], lane=lane, reference=content["reference"])
