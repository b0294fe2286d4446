"""Options of a campaign; operators, networks and pools in two sizes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CUDA = "cuda"
PRECISIONS = ("float16", "float32")
LEAST_S = 20.0  # a command's start and one batch: with less left of a box nothing is begun
Task = Mapping[str, Any]  # as in conf/workload
_CONV = {"operator": "conv2d", "kh": 3, "kw": 3, "stride": 1, "padding": 1}
_DEPTHWISE = {**_CONV, "operator": "depthwise_conv2d"}
_HALF = {"dtype": "float16"}

MATMUL = {"operator": "matmul", "m": 1024, "n": 1024, "k": 1024}
# Small enough that its unscheduled float16 reference is there in a second, not in six.
FIRST = {"operator": "matmul", "m": 512, "n": 512, "k": 512}
CONV = {**_CONV, "n": 8, "ci": 64, "h": 56, "w": 56, "co": 64}
# Of BERT-base.
BATCH_MATMUL = {"operator": "batch_matmul", "batch": 12, "m": 128, "n": 128, "k": 64}
DEPTHWISE = {**_DEPTHWISE, "n": 8, "c": 96, "h": 56, "w": 56}
SOFTMAX = {"operator": "softmax", "rows": 1536, "columns": 128}
GPT2_LINEAR = {"operator": "matmul", "m": 128, "n": 768, "k": 3072}  # its long reduction

TINY = {"operator": "matmul", "m": 64, "n": 64, "k": 64}
TINY_SOFTMAX = {"operator": "softmax", "rows": 64, "columns": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Operators of one precision, tuned in one run with equal trials."""

    name: str
    tasks: Sequence[Task]

    @property
    def words(self) -> list[str]:
        """The operators as words for ``tune.py``."""
        return ["workload=list", f"workload.tasks={as_words(self.tasks)}"]


def as_words(tasks: Sequence[Task]) -> str:
    """Tasks as a list that a command line takes.

    >>> as_words([{"operator": "matmul", "m": 8}])
    '[{operator: matmul, m: 8}]'
    """
    entries = (", ".join(f"{name}: {value}" for name, value in task.items()) for task in tasks)
    return f"[{', '.join('{' + entry + '}' for entry in entries)}]"


def halves(tasks: Sequence[Task]) -> list[Task]:
    """The operators with float16 operands, which GPUs multiply on tensor cores."""
    return [{**task, **_HALF} for task in tasks]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkChoice:
    """A network of ``tune.py``, with further words for it."""

    name: str
    words: Sequence[str] = ()

    @property
    def label(self) -> str:
        """Part of a folder's name; a network may be a file or package:factory."""
        return re.sub(r"[^\w.-]", "-", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The amount of work of a campaign.

    * ``trials``: per operator; the first round has 10, later rounds 16, for all policies.
    * ``network_trials``: per network.
    * ``pool``: programs per task of the pools; ``few`` first and then four times as many, so that
      every task has some.
    * ``pools``: the tasks, as in ``workloads=`` of ``pruner collect``.
    * ``beside``: baselines of the first timing; ``finals``: baselines of the last one, with
      ``energy_s`` seconds of energy measurement per turn.
    * ``adapted``: the operators for the adaptation of another device's model.
    * ``reduction``: operators with a long reduction (Table 8 of the paper).
    * ``settings``: options of every ``tune.py``.
    """

    sanity: Sequence[Task]
    single: Sequence[Task]
    half: Sequence[Task]
    adapted: Sequence[Task]
    reduction: Sequence[Task]
    networks: Sequence[NetworkChoice]
    trials: int = 58
    sanity_trials: int = 8
    network_trials: int = 320
    few: int = 12
    pool: int = 192
    pools: str = "gpu"
    apart_s: float = 10.0
    beside: Sequence[str] = ("eager",)
    finals: Sequence[str] = ("eager", "compile", "autotune")
    energy_s: int = 2
    settings: Sequence[str] = ("measure.min_repeat_ms=20", "measure.repeats=3")


FULL = Size(
    sanity=[FIRST, CONV, *halves([FIRST])],
    single=[MATMUL, CONV, BATCH_MATMUL, DEPTHWISE, SOFTMAX],
    half=halves([MATMUL, CONV, BATCH_MATMUL]),
    adapted=[CONV],
    reduction=[GPT2_LINEAR],
    networks=[NetworkChoice(name="bert_base"), NetworkChoice(name="resnet50")],
)
SMALL = Size(
    sanity=[TINY],
    single=[TINY, TINY_SOFTMAX],
    half=halves([TINY]),
    adapted=[TINY],
    reduction=[TINY],
    networks=[NetworkChoice(name="bert_tiny", words=("sizes.length=16", "sizes.layers=1"))],
    trials=4,
    sanity_trials=2,
    network_trials=4,
    few=2,
    pool=3,
    pools=as_words([TINY, TINY_SOFTMAX]),
    apart_s=1.0,
    finals=("eager",),
    energy_s=1,
    settings=("measure.min_repeat_ms=1", "measure.repeats=2", "measure.baseline=false"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignOptions:
    """A device, and the amount of work for it.

    ``platform``: the described device (conf/platform). ``minutes`` in all, shared among the stages;
    infinite: every stage runs to its end. ``compile_only``: nothing is run, the device may be
    absent. ``checkpoint`` of another device, for the stage that adapts it. ``stages``, ``only``
    (precisions): only these, () all. ``more``: further words of every ``tune.py``.
    """

    out: Path
    platform: str
    device: str = CUDA
    minutes: float = float("inf")
    compile_only: bool = False
    size: Size = FULL
    checkpoint: Path | None = None
    stages: Sequence[str] = ()
    only: Sequence[str] = ()
    more: Sequence[str] = ()

    @property
    def has_tensor_cores(self) -> bool:
        """Whether half precision is worth asking for."""
        return self.device == CUDA

    @property
    def groups(self) -> list[Group]:
        """The operators, by precision."""
        tasks = {"float32": self.size.single, "float16": self.size.half}
        return [Group(name=n, tasks=tasks[n]) for n in tasks if n in self.precisions and tasks[n]]

    @property
    def sanity(self) -> Group:
        """The first kernels, in the precisions of this device."""
        tasks = [task for task in self.size.sanity if self.has_tensor_cores or "dtype" not in task]
        return Group(name="sanity", tasks=tasks)

    @property
    def adapted(self) -> Group:
        """The operators for which a model of another device is adapted."""
        return Group(name="adaptation", tasks=self.size.adapted)

    @property
    def reduction(self) -> Group:
        """Operators with a long reduction."""
        return Group(name="reduction", tasks=self.size.reduction)

    @property
    def precisions(self) -> Sequence[str]:
        """Precisions of networks, the more informative first."""
        there = PRECISIONS if self.has_tensor_cores else ("float32",)
        return [name for name in there if name in (self.only or there)]

    @property
    def networks(self) -> list[tuple[NetworkChoice, str]]:
        """Every network in every precision."""
        return [(network, name) for name in self.precisions for network in self.size.networks]

    @property
    def outputs(self) -> Path:
        """``outputs=`` of the runs; compiled runs are kept apart."""
        return self.out / "compiled" if self.compile_only else self.out

    def run(self, name: str) -> Path:
        """The folder of a run of ``tune.py``."""
        return self.outputs / "tune" / name

    def kept(self, name: str) -> Path:
        """Path of a comparison's stored result."""
        return self.out / "kept" / f"{name}.json"

    @property
    def pools(self) -> Path:
        """The folder of the collected pools."""
        return self.out / "pools"
