"""Check device, description, folder and checkpoint before any work."""

import importlib.util
import os
import re
import shutil
from collections.abc import Iterable, Mapping

from experiments.gpu.cuda_paths import cuda_environment
from experiments.gpu.options import CUDA, CampaignOptions
from experiments.gpu.stages import ADAPTATION
from experiments.gpu.state import COMPILED, MEASURED, about_device, begun_with
from pruner.errors import DataError, PrunerError
from pruner.paths import conf_folder
from pruner.program.device import Device, GpuDevice, load_device
from pruner.tune.measure.machine import make_platform, missing_device

NVCC = "nvcc"
# Words behind a name that make it another chip, unless the description has them, too.
VARIANTS = ("laptop", "mobile", "max", "super", "ti", "d")
NAME, CAPABILITY = "name", "compute_cap"  # as `about_gpus` has them


def environment_of(options: CampaignOptions) -> dict[str, str]:
    """Environment variables, also set here, with which the commands find CUDA.

    Raises PrunerError: no CUDA device, or nothing that compiles CUDA programs; or, where
    programs are to run, no GPU, or TVM could not use it.
    """
    if options.device != CUDA:
        return {}
    found = cuda_environment()
    compiler = shutil.which(NVCC, path=found.get("PATH", os.environ.get("PATH")))
    if compiler is None and options.compile_only:  # there may be no driver, which NVRTC needs here
        raise PrunerError(f"no {NVCC} on the path: CUDA programs cannot be compiled")
    if compiler is None and not _has_nvrtc():
        raise PrunerError(f"no {NVCC} on the path, nor cuda-bindings: no CUDA program compiles")
    platform = make_platform(load_device(conf_folder() / "platform" / f"{options.platform}.yaml"))
    if options.compile_only:
        return found
    reason = missing_device(platform)
    if reason is not None:
        raise PrunerError(f"platform={options.platform}: {reason}")
    return found


def _has_nvrtc() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        return False


def check_folder(options: CampaignOptions, *, small: bool) -> None:
    """Raise DataError for a folder of another device or size, whose steps would count here.

    Compiled and measured steps are stored apart, so measuring may follow compiling.
    """
    kind = COMPILED if options.compile_only else MEASURED
    asked = begun_with(about_device(options.out)).get(kind)
    if asked is None:
        return
    begun = (asked.get("platform"), bool(asked.get("small")))
    if begun != (options.platform, small):
        raise DataError(
            f"out={options.out}: begun with platform={begun[0]} small={str(begun[1]).lower()}, and "
            "its results count; name another folder"
        )


def check_checkpoint(options: CampaignOptions) -> None:
    """Raise PrunerError, early, for a checkpoint that cannot be adapted."""
    asked = ADAPTATION in options.stages or not options.stages
    if options.checkpoint is None or options.compile_only or not asked:
        return
    own = any(word.startswith("models.own=") for word in options.more)  # classes of the user
    if own or importlib.util.find_spec("torch") is None:
        return
    from pruner.models.training.fit import start_of  # imports torch

    start_of(options.checkpoint)


def described_gpu(gpus: Iterable[Mapping[str, str]], devices: Iterable[Device]) -> str:
    """The platform of the first GPU, by architecture and name; raises PrunerError for none.

    The driver says ``NVIDIA GeForce RTX 4090`` or ``NVIDIA A100-SXM4-40GB``, platforms are called
    ``rtx4090`` and ``a100_40``: whole words, for a GH200 is no H200.
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
    """The words of a name, also joined with neighbours; gigabytes as numbers.

    >>> sorted(_said("RTX 4090 24GB"))
    ['24', '24gb', '4090', '409024gb', 'rtx', 'rtx4090', 'rtx409024gb']
    """
    words = re.findall(r"[a-z0-9]+", name.lower())
    ends = range(1, len(words) + 1)
    runs = {"".join(words[start:end]) for end in ends for start in range(end)}
    return runs | {word.removesuffix("gb") for word in words}
