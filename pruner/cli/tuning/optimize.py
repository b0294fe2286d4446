"""``pruner.optimize``: tune a module of torch as ``tune.py network=`` does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pruner.cli.shared.door import command_config
from pruner.cli.shared.known import check_idle
from pruner.cli.shared.output import quiet
from pruner.cli.shared.runs import new_run_folder, save_config
from pruner.cli.tune import run
from pruner.cli.tuning.network import run_label
from pruner.errors import PrunerError, lines_of
from pruner.files import held
from pruner.tune.deploy.built_files import DEPLOY_FILE, LIBRARY
from pruner.tune.deploy.loaded import Network
from pruner.tune.measure.machine import host_cpu
from pruner.tune.networks.plain import (
    Arguments,
    arguments_of,
    plain_call,
    plain_module,
    tensors_of,
    with_tensors,
)
from pruner.tune.networks.signature import exported

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from torch import Tensor, nn


def optimize(
    model: nn.Module,
    inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    *,
    effort: str = "quick",
    seconds: float | None = None,
    trials: int | None = None,
    folder: str | Path | None = None,
    threads: int | None = None,
    layout: str = "auto",
    seed: int = 0,
    progress: bool = True,
    options: Sequence[str] = (),
) -> Network:
    """Compile a module for inference here, as ``tune.py network=`` does.

    The module is exported in evaluation mode and stays unchanged. The resulting network has its
    weights and the sizes and types of `inputs`, and computes no gradients.

    Args:
        model: any module that ``torch.export.export`` takes.
        inputs: example inputs of ``forward`` on the CPU: a tensor, a sequence by position or a
            mapping by name. The values of tensors do not count. None, numbers, switches and words
            become constants.
        effort: draft (nothing is measured), quick (three minutes), normal or thorough.
        seconds: time for measuring instead of the effort's.
        trials: measured programs instead of the effort's.
        folder: a new folder for the run; by default one below ``outputs/tune``. The command line
            takes it: ``pruner deploy run=``, ``tune.py resume=``.
        threads: cores that the network uses; by default all.
        layout: NCHW, NHWC or auto.
        seed: of the search.
        progress: print the command's lines on stderr.
        options: further options of ``tune.py``, as its command line has them.

    Raises:
        PrunerError: a module that cannot be exported or imported, outputs that are not tensors,
            options that ``tune.py`` refuses, a folder that exists, or a network that cannot run
            here.
    """
    words = {"effort": effort, "budget.seconds": seconds, "budget.trials": trials}
    words |= {"layout": layout, "seed": seed, "network": f"{type(model).__name__}.pt2"}
    overrides = [f"{key}={value}" for key, value in words.items() if value is not None]
    given = {word.lstrip("+").partition("=")[0] for word in options}
    if taken := given & {"network", *(["target"] if threads is not None else [])}:
        why = "its module is the network" if "network" in taken else "threads= chooses the target"
        raise PrunerError(f"leave {min(taken)}= out of the options of optimize: {why}")
    if threads is not None:
        overrides.append(f"target={{kind:llvm,mcpu:{host_cpu()},num-cores:{threads}}}")
    with quiet(not progress):
        place = _run(model, inputs, [*overrides, *options], folder)
    library = place / LIBRARY
    if not library.is_file():
        raise PrunerError(f"{place}: its options built no network; pruner deploy run={place}")
    found = json.loads((place / DEPLOY_FILE).read_text(encoding="utf-8"))
    if "median_s" not in found:  # for another CPU, or measured on another machine
        raise PrunerError(f"{place}: {found['notes'][-1]}; pruner.load reads its {LIBRARY} there")
    return Network(library, latency_s=found["median_s"], folder=place)


def _run(
    model: nn.Module,
    inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    words: Sequence[str],
    folder: str | Path | None,
) -> Path:
    import torch

    given = arguments_of(inputs)
    name = type(model).__name__
    with torch.random.fork_rng(devices=[]), command_config("tune", words) as config:
        check_idle("tune", config, ("resume", "list", "plot"), "optimize starts a new run")
        program = _exported(model, given)
        place = _new_folder(folder, config, name)
        with held(place):
            config.network = str(place.resolve() / f"{name}.pt2")
            torch.export.save(program, config.network)
            del program  # it is as large as the weights
            save_config(place, config)
            run(config, place)
    return place


def _new_folder(folder: str | Path | None, config: DictConfig, name: str) -> Path:
    if folder is None:
        label = run_label(config, name)
        return new_run_folder(Path(config.outputs), "tune", config.run_id, label)
    try:
        Path(folder).mkdir(parents=True)
    except FileExistsError as error:
        raise PrunerError(
            f"folder={folder} exists and is never overwritten; pruner.load('{folder}/{LIBRARY}') "
            f"loads its network, python tune.py resume={folder} goes on with its run"
        ) from error
    return Path(folder)


def _exported(model: nn.Module, arguments: Arguments) -> Any:
    import torch
    from torch.utils import _pytree as tree

    called, plain = plain_call(model, arguments)
    for path, one in tree.tree_leaves_with_path(plain):
        if isinstance(one, torch.Tensor) and one.device.type != "cpu":
            # without the place among the arguments by position or by name
            name = f"input {tree.keystr(path[1:])}"
            raise PrunerError(f"{name} is on {one.device}: give module and inputs on the CPU")
    given = with_tensors(plain, [one.detach() for one in tensors_of(plain)])
    try:
        with evaluated(model):
            wrapper = plain_module(model) if called is model else None
            return exported(called, given, wrapper)
    except PrunerError:
        raise
    except Exception as error:  # torch's own kinds of errors, and the module's
        line = lines_of(error)[0]
        raise PrunerError(
            f"torch.export does not take {type(model).__name__} ({type(error).__name__}: {line}); "
            "write branches that depend on values with torch.where, or give the part that is plain "
            "tensor arithmetic"
        ) from error


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode inside, and restore every part afterwards."""
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
