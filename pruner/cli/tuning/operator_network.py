"""``workload=... variants=true``: an operator as a network, to which algebraic variants apply."""

import importlib
from pathlib import Path

from omegaconf import DictConfig

from pruner.cli.shared.options import build, plain
from pruner.cli.shared.output import say
from pruner.cli.shared.runs import open_run, save_config
from pruner.cli.tuning.network import network_label, run_label
from pruner.cli.tuning.platform import platform_of
from pruner.errors import PrunerError
from pruner.tune.kinds import OPENCL
from pruner.tune.rivals.ansor import Ansor
from pruner.tune.workloads import arguments, load_workloads

_NETWORK = "leave variants out, or name network=MODULE:FACTORY (docs/variants.md, single operators)"


def name_network(config: DictConfig) -> None:
    """Set ``network=`` to a file of the operator, not written yet.

    The layout stays that of the operator.

    Raises:
        PrunerError: several operators, a program of the user's, or half precision; a policy or a
            device without networks.
    """
    options, reason = plain(config.workload), None
    if "tasks" in options:
        reason = "workload=list: variants=true takes one operator"
    elif options.get("operator") == "file":
        reason = "workload=file: variants=true takes named operators and networks"
    elif options.get("dtype", "float32") != "float32":
        reason = f"workload.dtype={options['dtype']}: variants=true takes operators of float32"
    if reason is not None:
        raise PrunerError(f"{reason}; {_NETWORK}")
    if isinstance(build(config.policy), Ansor):
        raise PrunerError("variants=true: Ansor tunes no networks; leave it out")
    if platform_of(config, plain(config.target)).device == OPENCL:
        raise PrunerError("variants=true: networks are not built for OpenCL yet; leave it out")
    (workload,) = load_workloads(options)
    config.network = f"{workload.name}.pt2"
    config.layout = "NCHW" if config.layout == "auto" else config.layout


def export_operator(config: DictConfig, earlier: Path | None) -> Path:
    """Write torch's equivalent of the operator as the network's file.

    It is in the run folder. All tensors of the operator are inputs of the network. The run's
    configuration has no network before: a start that ended during the export resumes with it.

    Returns:
        The run folder.
    """
    torch = importlib.import_module("torch")
    runners = importlib.import_module("pruner.tune.compare.runners")
    signature = importlib.import_module("pruner.tune.networks.signature")
    (workload,) = load_workloads(plain(config.workload))
    name, label = config.network, run_label(config, network_label(config))
    config.network = None
    folder = open_run(config, "tune", label, earlier)
    random = torch.Generator().manual_seed(config.seed)
    *shapes, _ = (shape for shape, _ in arguments(workload.module))
    inputs = tuple(torch.randn(shape, generator=random) for shape in shapes)
    module = runners.torch_operator(workload.spec)
    config.network = str(folder.resolve() / name)
    torch.export.save(signature.exported(module, (inputs, {}), is_pure=True), config.network)
    save_config(folder, config)
    say(f"{workload.name} is tuned as a network of one operator (docs/variants.md)")
    return folder
