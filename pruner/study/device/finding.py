"""Which described device this machine's GPU is."""

import re
from collections.abc import Iterable, Mapping

from pruner.errors import PrunerError
from pruner.program.device import Device, GpuDevice

NAME, CAPABILITY = "name", "compute_cap"  # as `about_gpus` has them


def described_gpu(gpus: Iterable[Mapping[str, str]], devices: Iterable[Device]) -> str:
    """The platform of the first GPU: of those with its architecture the one in whose name it is.

    The driver says ``NVIDIA H200`` or ``NVIDIA GeForce RTX 4090``, platforms are called ``h200``
    and ``rtx4090``.

    Raises:
        PrunerError: no GPU, or none of the descriptions is its.
    """
    first = next(iter(gpus), None)
    if first is None:
        raise PrunerError(
            "no NVIDIA GPU is visible: say device=cpu, or platform=NAME compile_only=true"
        )
    name = re.sub(r"[^a-z0-9]", "", first[NAME].lower())
    architecture = f"sm_{first[CAPABILITY].replace('.', '')}"
    alike = [d for d in devices if isinstance(d, GpuDevice) and d.architecture == architecture]
    called = [d.name for d in alike if d.name.replace("_", "") in name]
    if not called:
        known = ", ".join(d.name for d in alike) or "none"
        raise PrunerError(
            f"{first[NAME]} ({architecture}) has no description; say platform=NAME, of this "
            f"architecture there are: {known}; CONTRIBUTING.md says how to add one"
        )
    return max(called, key=len)
