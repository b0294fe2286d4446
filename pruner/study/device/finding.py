"""Which described device this machine's GPU is."""

import re
from collections.abc import Iterable, Mapping

from pruner.errors import PrunerError
from pruner.program.device import Device, GpuDevice

# Words behind a name that make it another chip, unless the description has them, too.
VARIANTS = ("laptop", "mobile", "max", "super", "ti", "d")
NAME, CAPABILITY = "name", "compute_cap"  # as `about_gpus` has them


def described_gpu(gpus: Iterable[Mapping[str, str]], devices: Iterable[Device]) -> str:
    """The platform of the first GPU: of those with its architecture the one in whose name it is.

    The driver says ``NVIDIA GeForce RTX 4090`` or ``NVIDIA A100-SXM4-40GB``, platforms are called
    ``rtx4090`` and ``a100_40``: whole words, for a GH200 is no H200.

    Raises:
        PrunerError: no GPU, or none of the descriptions is its.
    """
    first = next(iter(gpus), None)
    if first is None:
        raise PrunerError(
            "no NVIDIA GPU is visible: use device=cpu, or platform=NAME compile_only=true"
        )
    said = _said(first[NAME])
    architecture = f"sm_{first[CAPABILITY].replace('.', '')}"
    alike = [d for d in devices if isinstance(d, GpuDevice) and d.architecture == architecture]
    other = said.intersection(VARIANTS)
    called = [
        d.name
        for d in alike
        if said.issuperset(d.name.split("_")) and all(word in d.name for word in other)
    ]
    if not called:
        known = ", ".join(d.name for d in alike) or "none"
        raise PrunerError(
            f"{first[NAME]} ({architecture}) has no description; add platform=NAME. Known "
            f"for this architecture: {known}. CONTRIBUTING.md describes how to add one"
        )
    return max(called, key=len)


def _said(name: str) -> set[str]:
    """The words of a name, neighbours as one word, too, and gigabytes as numbers.

    >>> sorted(_said("RTX 4090 24GB"))
    ['24', '24gb', '4090', '409024gb', 'rtx', 'rtx4090', 'rtx409024gb']
    """
    words = re.findall(r"[a-z0-9]+", name.lower())
    ends = range(1, len(words) + 1)
    runs = {"".join(words[start:end]) for end in ends for start in range(end)}
    return runs | {word.removesuffix("gb") for word in words}
