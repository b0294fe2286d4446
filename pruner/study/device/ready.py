"""Whether a device can be asked anything, found out before the first of its minutes is spent."""

import importlib.util
import os
import shutil

from pruner.errors import DataError, PrunerError
from pruner.places import conf_folder
from pruner.program.device import load_device
from pruner.study.device.options import CUDA, CampaignOptions
from pruner.study.device.stages import ADAPTATION
from pruner.study.device.state import COMPILED, MEASURED, about_device, begun_with
from pruner.tune.cuda import cuda_environment
from pruner.tune.measure.machine import make_platform, missing_device

NVCC = "nvcc"


def environment_of(options: CampaignOptions) -> dict[str, str]:
    """What the commands of a campaign need to find CUDA here, beside this process's environment.

    Raises:
        PrunerError: no CUDA device, or nothing that compiles CUDA programs; or, where programs are
            to run, no GPU, or TVM could not use it.
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
    """Whether TVM could take CUDA's compiler as a library."""
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        return False


def check_folder(options: CampaignOptions, *, small: bool) -> None:
    """Refuse a folder of another device or size: what is done there would be taken for done here.

    What only compiles lies apart from what ran, so the one may follow the other.

    Raises:
        DataError: it is one, or what was asked there cannot be read.
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
    """Refuse a checkpoint that the stage that adapts it could not read; its turn comes late.

    Raises:
        PrunerError: no such file, or no model that can be adapted.
    """
    asked = ADAPTATION in options.stages or not options.stages
    if options.checkpoint is None or options.compile_only or not asked:
        return
    own = any(word.startswith("models.own=") for word in options.more)  # classes of the user
    if own or importlib.util.find_spec("torch") is None:
        return
    from pruner.models.training.fit import start_of  # imports torch

    start_of(options.checkpoint)
