"""Whether a GPU can be asked anything, found out before the first of its minutes is spent."""

import importlib.util
import os
import shutil

from pruner.errors import PrunerError
from pruner.places import conf_folder
from pruner.program.device import load_device
from pruner.study.device.options import CUDA, CampaignOptions
from pruner.tune.cuda import cuda_environment
from pruner.tune.measure.machine import make_platform, missing_device

NVCC = "nvcc"


def environment_of(options: CampaignOptions) -> dict[str, str]:
    """What the commands of a campaign need to find CUDA here, beside this process's environment.

    Raises:
        PrunerError: nothing that compiles CUDA programs; or, where programs are to run, no GPU, or
            TVM could not use it.
    """
    if options.device != CUDA:
        return {}
    found = cuda_environment()
    compiler = shutil.which(NVCC, path=found.get("PATH", os.environ.get("PATH")))
    if compiler is None and options.compile_only:  # there may be no driver, which NVRTC needs here
        raise PrunerError(f"no {NVCC} on the path: CUDA programs cannot be compiled")
    if compiler is None and not _has_nvrtc():
        raise PrunerError(f"no {NVCC} on the path, nor cuda-bindings: no CUDA program compiles")
    if options.compile_only:
        return found
    device = load_device(conf_folder() / "platform" / f"{options.platform}.yaml")
    reason = missing_device(make_platform(device))
    if reason is not None:
        raise PrunerError(f"platform={options.platform}: {reason}")
    return found


def _has_nvrtc() -> bool:
    """Whether TVM could take CUDA's compiler as a library."""
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        return False
