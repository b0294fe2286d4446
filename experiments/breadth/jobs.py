"""Jobs of the worker that tries networks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.benchmark import Timer

import pruner
from experiments.breadth.sources import OF_IMAGES, make
from pruner.errors import PrunerError
from pruner.tune.deploy.build import compiled
from pruner.tune.measure.numerics import relative_error
from pruner.tune.networks.lowering import NetworkFormat
from pruner.tune.networks.plain import tensors_of
from pruner.tune.networks.request import NetworkRequest, lowered_network
from pruner.tune.networks.signature import exported
from pruner.tune.networks.source import NetworkSource
from pruner.tune.tvm_import import load_tvm

Call = Callable[..., Any]

TARGET = {"kind": "llvm", "num-cores": 1}
LARGEST_ERROR = 1e-3  # of the largest number of an output
ROUNDING = 1e-6  # absolute
TIMED_S = 0.3  # of each way to run a network, in each of its turns
TURNS = 3


def ready() -> None:
    """Return at once: the worker has imported its modules."""


def attempt(
    source: str,
    name: str,
    kernelbench: Path | None,
    image: int | None,
    folder: Path,
    draft: bool,
    with_compile: bool,
) -> dict[str, Any]:
    """Make a library of a network, compare it with torch, and return the row of the table.

    With `draft` the library is `pruner.optimize`'s and is timed beside torch; else its programs
    have no schedules. ``error``: the largest difference of an output by its largest number.
    ``reason``: the line that a user sees where there is no library. ``image``: the pixels per side
    that a network of images got.
    """
    try:
        network, inputs = make(source, name, kernelbench, image)
    except PrunerError as error:
        return {"outcome": "not tried", "reason": str(error)}
    size = {"image": int(inputs[0].shape[-1])} if source in OF_IMAGES else {}
    with torch.no_grad():
        wanted = [one.clone() for one in tensors_of(network(*copies(inputs)))]
    start_s = time.monotonic()
    try:
        built = (drafted if draft else unscheduled)(network, copies(inputs), folder)
        found = tensors_of(built(*copies(inputs)))
    except PrunerError as error:
        seconds = time.monotonic() - start_s
        return {"outcome": "refused", "reason": str(error), "seconds": seconds} | size
    seconds = time.monotonic() - start_s
    pairs = [(a.numpy(), b.numpy()) for a, b in zip(found, wanted, strict=True)]
    error = max(relative_error(a, b) for a, b in pairs)
    # means of normalised values are nothing but rounding
    is_right = error < LARGEST_ERROR or all(np.allclose(a, b, 0, ROUNDING) for a, b in pairs)
    row = {"outcome": "right" if is_right else "wrong", "seconds": seconds} | size
    ways: dict[str, Call] = {}
    if draft:
        ways = {"drafted": built, "eager": network}
        if with_compile:
            ways["compile"] = torch.compile(network)
    return row | {"error": error} | timed(ways, inputs)


def drafted(network: nn.Module, inputs: tuple[Any, ...], folder: Path) -> Call:
    """Draft a network: nothing is measured."""
    return pruner.optimize(network, inputs, effort="draft", folder=folder, progress=False)


def unscheduled(network: nn.Module, inputs: tuple[Any, ...], folder: Path) -> Call:
    """Build a network's functions as they are lowered."""
    folder.mkdir(parents=True)
    file = folder / "network.pt2"
    try:
        with torch.no_grad():
            torch.export.save(exported(network, (inputs, {}), is_pure=True), file)
    except Exception as error:  # torch's own kinds
        raise PrunerError(f"torch.export: {error}") from error
    form = NetworkFormat(layout="NHWC")
    request = NetworkRequest(source=NetworkSource(name=str(file)), target=TARGET, form=form)
    tvm = load_tvm().tvm
    module, *_ = lowered_network(request)
    executable = compiled(module, request.tvm_target())
    file.unlink()  # as large as the weights
    machine = load_tvm().relax.VirtualMachine(executable, tvm.cpu())

    def call(*given: Any) -> list[Tensor]:
        tensors = [tvm.runtime.tensor(one.numpy()) for one in given if isinstance(one, Tensor)]
        outputs = machine["main"](*tensors)
        many = [outputs] if hasattr(outputs, "numpy") else outputs
        return [torch.from_numpy(one.numpy().copy()) for one in many]

    return call


def timed(ways: dict[str, Call], inputs: tuple[Any, ...]) -> dict[str, Any]:
    """Time ways to run a network in turns; median milliseconds of each."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    with torch.no_grad():
        for way, call in list(ways.items()):
            try:
                call(*inputs)  # compiles
            except Exception as error:  # torch.compile has kinds of its own
                print(f"{way}: {error}")
                del ways[way]
        for _ in range(TURNS):
            for way, call in ways.items():
                given = {"call": call, "inputs": inputs}
                timer = Timer("call(*inputs)", globals=given, num_threads=torch.get_num_threads())
                times[way].append(timer.blocked_autorange(min_run_time=TIMED_S).median)
    return {f"{way}_ms": 1e3 * float(np.median(t)) if t else None for way, t in times.items()}


def copies(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy inputs: a network may write into them."""
    return tuple(one.clone() if isinstance(one, Tensor) else one for one in inputs)
