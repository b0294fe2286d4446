"""Check that a network fits into memory before its weights exist.

Torch, its export and Relax's constants share the weights, but passes that fold, turn and pack
constants write new ones beside the old: to lower a network takes several times its weights.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pruner.errors import PrunerError
from pruner.tune.networks.sizes import NetworkOptions

if TYPE_CHECKING:
    from torch import nn

COPIES = 4  # of the weights, at the worst moment (opt with two layers: 4.1, and 1.05 until lowered)
GB = 1e9
_ADVICE = "free memory, or take a smaller network"
_FEW = 2  # layers: the first and the last, with only equal layers in between
_MEMINFO, _LIMIT = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")


def free_bytes() -> float:
    """Read the free memory of the machine and of this process's group."""
    found = [float("inf")]
    with suppress(OSError, ValueError):  # another system, or no limit ("max")
        found.append(float(_LIMIT.read_text(encoding="utf-8")))
    with suppress(OSError, ValueError, StopIteration):
        lines = _MEMINFO.read_text(encoding="utf-8").splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        found.append(1024.0 * int(line.split()[1]))
    return min(found)


def module_bytes(network: nn.Module) -> int:
    """Count the bytes of parameters and buffers, shared tensors once."""
    return sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))


def named_bytes(name: str, options: NetworkOptions) -> int:
    """Count the bytes of a catalog network's weights without allocating memory."""
    torch = importlib.import_module("torch")
    make = importlib.import_module("pruner.tune.networks.catalog").NETWORKS[name]
    # tensors of this device have shapes and no memory
    with torch.device("meta"):
        return module_bytes(make(options)[0])


def check_named(name: str, options: NetworkOptions, free: float | None = None) -> None:
    """Refuse a catalog network that would not fit, and suggest sizes.

    `free`: bytes, by default those of this machine. Raises `PrunerError`: its import takes more.
    """
    # layers repeat each other: a network of two has the same tasks
    few = NetworkOptions(**{**options.given, "layers": min(options.layers or _FEW, _FEW)})
    weights, least = named_bytes(name, options), named_bytes(name, few)
    advice = ""
    if least < weights:
        advice = f"sizes.layers={few.layers} takes {COPIES * least / GB:.0f} GB and has the same "
        advice += "tasks, called less often"
    check(name, weights, advice, free=free)


def check(
    name: str, weights: float, advice: str = "", *, held: int = 0, free: float | None = None
) -> None:
    """Refuse an import that takes more memory than is free.

    `held` copies of the weights exist already. Raises `PrunerError`: it does; one line has both
    sizes and the `advice`.
    """
    available = free_bytes() if free is None else free
    if (COPIES - held) * weights > available:
        raise PrunerError(
            f"network={name}: {weights / GB:.1f} GB of weights take about "
            f"{COPIES * weights / GB:.0f} GB of memory while it is lowered, "
            f"{available / GB:.0f} GB are free; {advice or _ADVICE}"
        )
