"""``python tune.py``: tune programs on real hardware.

Runs that measure are in `pruner.cli.tuning.measured_run`: torch takes seconds to import.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pruner.cli.shared.known import NETWORK_POLICY, check_idle
from pruner.cli.shared.options import build, choice, plain, words_of
from pruner.cli.shared.output import print_result, quiet, say
from pruner.cli.shared.runs import open_run, resumed_config, save_config
from pruner.cli.tuning.interrupts import Interrupted
from pruner.cli.tuning.network import draft_run, list_run, network_label, run_label
from pruner.cli.tuning.platform import check_device, platform_of
from pruner.errors import PrunerError
from pruner.search.objectives import Objective
from pruner.tune.kinds import OPENCL
from pruner.tune.networks.source import NetworkSource
from pruner.tune.rivals.ansor import Ansor
from pruner.tune.run.journal import JOURNAL_FILE
from pruner.tune.tvm_import import cpus_only
from pruner.tune.workloads import arguments, load_workloads

_NETWORK = "leave variants out, or name network=MODULE:FACTORY (docs/variants.md, single operators)"
ENDS = ("trials", "seconds", "patience")  # of a budget
# options that a resumed run may change
MORE = (*(f"budget.{name}" for name in (*ENDS, "tolerance")), "effort", "deploy", "warm_start")


def tune(config: DictConfig) -> dict[str, Any]:
    """Run the command; return the object of the last line."""
    if config.plot is not None:
        from pruner.cli.tuning.measured_run import plot

        return plot(config)
    earlier = Path(config.resume) if config.resume is not None else None
    if earlier is not None:
        config = resumed(earlier, config)
    if config.platform.kind == "cpu":
        cpus_only()
    try:
        return run(config, earlier)
    except Interrupted as ended:
        print_result(ended.result)
        sys.exit(ended.exit_code)


def run(config: DictConfig, folder: Path | None) -> dict[str, Any]:
    """Run the requested kind of tuning; raise `Interrupted` if ended early."""
    effort = build(config.effort)
    # older runs have sizes.batch=1
    if config.network is None and {*config.sizes.values()} - {None, 1}:
        raise PrunerError("sizes.* and input= are sizes of a network: add network=NAME")
    if config.network is None and config.list:
        raise PrunerError("list=true lists the tasks of a network: add network=NAME")
    is_operator = config.network is None and config.variants
    if is_operator:
        name_network(config)
    if config.network is not None:
        NetworkSource(name=str(config.network)).check_name()
    if config.network is not None and not Objective.of(plain(config.objective)).is_latency:
        raise PrunerError(
            f"objective={config.objective}: a network is tuned for latency; leave it out, or name "
            "an operator (workload=) without variants=true"
        )
    if folder is None:
        _refuse_idle(config, is_operator)
    if config.network is not None and config.list:
        return list_run(config, folder)
    if config.network is not None and not effort.measures:
        effort.budget(plain(config.budget), None)  # refuses an end that would have no effect
        words = [word for word in words_of("policy") if word != NETWORK_POLICY]
        words += words_of("model")
        chosen = f"policy={choice('policy')}"
        if folder is None and chosen != NETWORK_POLICY and not words:
            words = [chosen]  # by experiment=
        if words:
            raise PrunerError(
                f"{' '.join(words)}: effort=draft has a search of its own and no learned model; "
                "leave it out, or choose an effort that measures"
            )
        for name in ("checkpoint", "warm_start", "compile_only"):
            if config[name]:
                raise PrunerError(
                    f"{name}={config[name]}: effort=draft measures and learns nothing; leave it out"
                )
        if config.measure.finalists:
            raise PrunerError(
                f"measure.finalists={config.measure.finalists}: effort=draft measures nothing; "
                "leave it out"
            )
        return draft_run(config, export_operator(config, folder) if is_operator else folder)
    if not effort.measures:
        raise PrunerError("effort=draft drafts the tasks of a network: add network=NAME")
    from pruner.cli.tuning.measured_run import tune_run
    from pruner.cli.tuning.read_options import tune_options

    if is_operator:
        with quiet():
            tune_options(config)  # wrong options are refused before there is a run folder
        folder = export_operator(config, folder)
    return tune_run(config, effort, folder)


def _refuse_idle(config: DictConfig, is_operator: bool) -> None:
    if (device := config.measure.device) is not None:
        check_device(device, [platform_of(config, plain(config.target))])
    if config.network is None:
        of_networks = "it is of a network (network=NAME); operators have workload.dtype="
        check_idle("tune", config, ("layout", "precision"), of_networks)
    elif not is_operator and (words := words_of("workload")):
        raise PrunerError(
            f"{' '.join(words)}: it is of operators; leave it out with network= (precision= is of "
            "networks)"
        )


def resumed(folder: Path, given: DictConfig) -> DictConfig:
    """Read an earlier run's configuration; extend its budget on request.

    A run that only drafted gets an effort that measures with a budget. Raises `PrunerError`
    otherwise.
    """
    config = resumed_config(folder, given, more=MORE)
    if build(config.effort).measures:
        return config
    if (folder / JOURNAL_FILE).is_file():
        raise PrunerError(
            f"resume={folder}: this run has measured programs; leave effort= out (pruner deploy "
            f"run={folder} builds its network)"
        )
    if any(config.budget[end] is not None for end in ENDS):
        config.effort = given.effort
    return config


def name_network(config: DictConfig) -> None:
    """Set ``network=`` to a file of the operator, not written yet.

    The layout stays that of the operator. Raises `PrunerError`: several operators, a program of the
    user's, or half precision; a policy or a device without networks.
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
