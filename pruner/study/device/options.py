"""What a campaign is told."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pruner.study.device.sizes import FULL, Group, Size

CUDA = "cuda"
LEAST_S = 20.0  # a command's start and one batch: with less left of a box nothing is begun


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignOptions:
    """A device, and how much is asked of it.

    ``platform``: the described device (conf/platform). ``minutes`` in all, shared among the
    stages; infinite: every stage runs to its end. ``compile_only``: nothing is run, the device may
    be absent. ``checkpoint`` of another device, for the stage that adapts it. ``stages``: only
    these, () all. ``more``: further words of every ``tune.py``.
    """

    out: Path
    platform: str
    device: str = CUDA
    minutes: float = float("inf")
    compile_only: bool = False
    size: Size = FULL
    checkpoint: Path | None = None
    stages: Sequence[str] = ()
    more: Sequence[str] = ()

    @property
    def has_tensor_cores(self) -> bool:
        """Whether half precision is worth asking for."""
        return self.device == CUDA

    @property
    def groups(self) -> list[Group]:
        """The operators, by precision."""
        single = Group(name="float32", tasks=self.size.single)
        half = Group(name="float16", tasks=self.size.half)
        return [single, half] if self.has_tensor_cores else [single]

    @property
    def sanity(self) -> Group:
        """The first kernels; those of this device's precisions."""
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
        """Of networks, the more telling first."""
        return ("float16", "float32") if self.has_tensor_cores else ("float32",)

    @property
    def outputs(self) -> Path:
        """``outputs=`` of the runs; what only compiled is no measured run, so it lies elsewhere."""
        return self.out / "compiled" if self.compile_only else self.out

    def run(self, name: str) -> Path:
        """The folder of a run of ``tune.py``."""
        return self.outputs / "tune" / name

    def kept(self, name: str) -> Path:
        """Where the result of a comparison is kept."""
        return self.out / "kept" / f"{name}.json"

    @property
    def pools(self) -> Path:
        """The folder of the collected pools."""
        return self.out / "pools"
