"""Measure a device in minutes: operators, networks, records, against torch.

    python -m experiments.gpu.run device=cuda minutes=25 out=DIR            on a GPU
    python -m experiments.gpu.run device=cuda minutes=25 out=DIR checkpoint=RUN     with a model
    python -m experiments.gpu.run device=cuda minutes=25 out=DIR plan=true  list the work
    python -m experiments.gpu.run out=DIR summary=true                      the tables so far
    python -m experiments.gpu.run device=cpu small=true minutes=null out=DIR     a rehearsal
    python -m experiments.gpu.run platform=h200 compile_only=true small=true out=DIR   without a GPU

The stages, in the order of their value, each with a share of the minutes: check a few kernels; tune
operators by ours, MetaSchedule and random search with equal trials, and time them against cuBLAS
and cuDNN (through torch); measure evenly sampled programs as records; tune BERT-base and ResNet-50
in both precisions; adapt a model of another device (checkpoint=RUN of python train.py platform=k80
data.root=DIR; skipped without a checkpoint); time the final kernels and networks against
torch.compile, with their energy. Unused minutes go to the next stages; finished work is skipped,
interrupted work continues. See docs/campaign.md.

OUT/results/ has operators.csv, groups.csv, networks.csv, curves.csv, beside.csv, device.json
(description, clocks and temperatures), records/ and, as one file to take home, campaign.tar.gz.

minutes: for this start, shared by the stages; null: every stage runs to its end. platform: a file
of conf/platform; null: the description of this machine's device. small: tiny operators and one tiny
network. stages: sanity, operators, pools, networks, adaptation, finals; on request rivals, paper.
trials, network_trials, pool: per operator and policy, per network, programs per task; null: 58, 320
and 192, or 4, 4 and 3 when small. operators: names such as conv2d; precisions: float16,
float32; empty: all. networks: empty: bert_base and resnet50. beside: baselines of the first timing
of kernels and networks (eager, compile, autotune); empty: eager. more: further options of every
tune.py, quoted: "more=['measure.builders=8']". results: folder of the tables; null: OUT/results.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.common.comparison import SECONDS_FILE, Box, Comparison, Ended, Step
from experiments.gpu.options import (
    CUDA,
    FULL,
    PRECISIONS,
    SMALL,
    CampaignOptions,
    NetworkChoice,
    Size,
)
from experiments.gpu.ready import check_checkpoint, check_folder, described_gpu, environment_of
from experiments.gpu.results import compiled_counts, write_results
from experiments.gpu.stages import GUESSES, LEAST_BUDGET_S, boxes, left_out
from experiments.gpu.state import State, about_device
from pruner.cli.shared.door import LAST, OUTPUTS
from pruner.cli.shared.known import files_of
from pruner.cli.shared.output import as_table, say
from pruner.cli.shared.runs import last_checkpoint
from pruner.cli.shared.script import run_script
from pruner.errors import DataError, PrunerError, check_chosen
from pruner.files import held
from pruner.paths import checkpoint_named, conf_folder, sources_folder
from pruner.program.device import GpuDevice, load_device
from pruner.tune.compare.baselines import FOR_KERNELS
from pruner.tune.measure.targets import local_platform
from pruner.tune.pools.conditions import about_gpus

HERE = Path(__file__).resolve().parent
DEVICES = ("cpu", CUDA)
PLACES = ("out", "results", "checkpoint")  # machine-specific; not part of the result


@dataclass(kw_only=True)
class Options:
    """Words of the command line, which the script's docstring describes."""

    device: str = CUDA
    platform: str | None = None
    minutes: float | None = 25.0
    out: str = "outputs/campaign"
    compile_only: bool = False
    small: bool = False
    stages: list[str] = field(default_factory=list)
    trials: int | None = None
    operators: list[str] = field(default_factory=list)
    precisions: list[str] = field(default_factory=list)
    networks: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)
    network_trials: int | None = None
    pool: int | None = None
    checkpoint: str | None = None
    more: list[str] = field(default_factory=list)
    results: str | None = None
    plan: bool = False
    summary: bool = False

    def __post_init__(self) -> None:
        if self.minutes is not None and not self.minutes > 0:
            raise PrunerError(f"minutes={self.minutes:g}: it must be a number above 0, or null")
        for name in ("trials", "network_trials", "pool"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise PrunerError(f"{name}={value}: a whole number, 2 or more, or null")


class Campaign(Comparison):
    """All stages of a device, each started again until it is done.

    ``write`` is called after every stage; ``environment`` is added to that of every command, and
    ``more`` are arguments of `Comparison`.
    """

    def __init__(
        self,
        options: CampaignOptions,
        *,
        write: Callable[[CampaignOptions], Any],
        environment: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        self._options, self._write = options, write
        self._state = State(options.out, options.device)
        paths = [str(sources_folder()), os.environ.get("PYTHONPATH", "")]
        super().__init__(
            options.out,
            options.out,
            GUESSES,
            # Apart from compiled runs: their seconds predict nothing for a machine with the device.
            times=options.outputs / SECONDS_FILE,
            environment={
                **(environment or {}),
                "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            },
            **more,
        )

    @property
    def boxes(self) -> list[Box]:
        """The stages as time slots."""
        return boxes(self._options)

    def log_left_out(self) -> None:
        """Report stages without work, and their missing inputs."""
        for line in left_out(self._options):
            self.log(line)

    def plan(self) -> list[dict[str, Any]]:
        """The work to do: a row a step, with its minutes and its stage's."""
        limits = {box.name: box.seconds / 60 for box in self.boxes}
        return [{**row, "of": limits[row["box"]]} for row in super().plan()]

    def show_plan(self) -> dict[str, Any]:
        """Print the work to do with its minutes, and stages without work."""
        rows = self.plan()
        self.log_left_out()
        self.log(as_table(rows) if rows else "nothing is left to do")
        return {"steps": len(rows), "minutes": round(sum(row["minutes"] for row in rows), 1)}

    def run_campaign(self, asked: Mapping[str, Any]) -> None:
        """Run the missing stages; raises PrunerError where another process does."""
        self.runs.mkdir(parents=True, exist_ok=True)
        with held(self.runs):
            self._state.begin(asked)
            self.log_left_out()
            self.run_all()

    def after(self, box: Box) -> None:
        """Write the tables so far; an error is reported and ends nothing."""
        try:
            self._write(self._options)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            self.log(f"no tables ({what}); they can be made later, by summary=true")

    @property
    def undone(self) -> list[str]:
        """Names of the steps that are not done."""
        return [step.name for box in self.boxes for step in box.steps() if not step.done]

    def run(self, step: Step, share_s: float, limit_s: float) -> Ended:
        """Run one command, with readings of the device before and after it."""
        self._state.note(step.name, "before")
        try:
            return self.command(step, share_s, limit_s)
        finally:
            self._state.note(step.name, "after")

    def command(self, step: Step, share_s: float, limit_s: float) -> Ended:
        """Run one command, its budget shortened by the seconds around it."""
        least_s = min(LEAST_BUDGET_S, limit_s - step.start_s)
        return super().run(step, max(1.0, least_s, share_s - step.start_s), limit_s)


def run(config: Options) -> dict[str, Any]:
    """Run the missing work, or list it; returns the last line's object."""
    start = time.monotonic()
    options = options_of(_as_asked(config) if config.summary else config)
    results = options.out / "results" if config.results is None else Path(config.results).resolve()
    if results == HERE and not config.plan:
        raise PrunerError("results=: the tables there are of runs on other machines; name another")
    if config.summary:
        return {**_written(options, results), "results": str(results)}
    check_folder(options, small=config.small)
    check_checkpoint(options)
    write = partial(write_results, folder=results)
    if config.plan:
        return Campaign(options, write=write).show_plan()
    work = Campaign(options, write=write, environment=environment_of(options))
    say(f"{options.platform}, into {options.out}; the same command continues it")
    asked = {name: value for name, value in asdict(config).items() if name not in PLACES}
    work.run_campaign({**asked, "platform": options.platform})
    undone = work.undone
    if undone:
        say(f"not done: {'; '.join(undone)}; the same command continues")
    return {
        **_written(options, results),
        "out": str(options.out),
        "results": str(results),
        "undone": undone,
        "seconds": round(time.monotonic() - start, 1),
    }


def _as_asked(config: Options) -> Options:
    """Restore the options of the folder's start; raises DataError without one."""
    asked = about_device(_out(config)).get("asked")
    if not isinstance(asked, dict):
        raise DataError(f"out={config.out}: no campaign was begun there; leave out summary=true")
    return replace(
        config, **{name: value for name, value in asked.items() if name in asdict(config)}
    )


def _out(config: Options) -> Path:
    if not config.out:
        raise PrunerError("out= is empty: name a folder")
    return Path(config.out).resolve()


def options_of(config: Options) -> CampaignOptions:
    """The options as typed values; raises PrunerError for no folder or device."""
    check_chosen("device", [config.device], DEVICES)
    check_chosen("precisions", config.precisions, PRECISIONS)
    checkpoint = config.checkpoint
    if checkpoint == LAST:
        checkpoint = str(last_checkpoint(Path(OUTPUTS)))
        say(f"checkpoint={checkpoint}")
    return CampaignOptions(
        out=_out(config),
        platform=_platform(config),
        device=config.device,
        minutes=float("inf") if config.minutes is None else config.minutes,
        compile_only=config.compile_only,
        size=_size(config),
        checkpoint=None if checkpoint is None else checkpoint_named(Path(checkpoint)).resolve(),
        stages=config.stages,
        only=config.precisions,
        more=config.more,
    )


def _platform(config: Options) -> str:
    folder, known = conf_folder() / "platform", files_of("platform")
    if config.platform is not None:
        check_chosen("platform", [config.platform], known)
        is_gpu = isinstance(load_device(folder / f"{config.platform}.yaml"), GpuDevice)
        if is_gpu != (config.device == CUDA):
            fits = CUDA if is_gpu else "cpu"
            raise PrunerError(
                f"platform={config.platform} is not a {config.device} device; add device={fits}"
            )
        return str(config.platform)
    if config.device == CUDA:
        described = (load_device(folder / f"{name}.yaml") for name in known)
        return described_gpu(about_gpus(), described)
    return local_platform()


def _size(config: Options) -> Size:
    counts = {name: getattr(config, name) for name in ("trials", "network_trials", "pool")}
    given: dict[str, Any] = {name: n for name, n in counts.items() if n is not None}
    size = SMALL if config.small else FULL
    if config.operators:
        check_chosen("operators", config.operators, (str(task["operator"]) for task in size.single))
        for name in ("single", "half"):
            given[name] = [
                task for task in getattr(size, name) if task["operator"] in config.operators
            ]
    if config.networks:
        given["networks"] = [NetworkChoice(name=name) for name in config.networks]
    if config.beside:
        check_chosen("beside", config.beside, FOR_KERNELS)
        given["beside"] = config.beside
    return replace(size, **given)


def _written(options: CampaignOptions, results: Path) -> Mapping[str, int]:
    counts = write_results(options, results)
    say(", ".join(f"{number} rows of {name}" for name, number in counts.items()))
    if not options.compile_only:
        return counts
    built = compiled_counts(options)
    of = sum(built.values())
    if of:  # of pools nothing is known before they are timed
        say(f"{built['compiled']} of {of} programs of operators and networks compile")
    return {**counts, **built}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
