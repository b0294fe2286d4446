"""``python tune.py``: tune programs on real hardware.

Runs that measure are in `pruner.cli.tuning.measured_run`: torch takes seconds to import.
"""

import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pruner.cli.shared.known import NETWORK_POLICY
from pruner.cli.shared.options import build, choice, plain, words_of
from pruner.cli.shared.output import print_result, quiet
from pruner.cli.shared.runs import resumed_config
from pruner.cli.tuning.interrupts import Interrupted
from pruner.cli.tuning.network import draft_run, list_run
from pruner.cli.tuning.operator_network import export_operator, name_network
from pruner.errors import PrunerError
from pruner.search.objectives import Objective
from pruner.tune.networks.source import NetworkSource
from pruner.tune.run.journal import JOURNAL_FILE
from pruner.tune.tvm_import import cpus_only

ENDS = ("trials", "seconds", "patience")  # of a budget
MORE = (*(f"budget.{name}" for name in (*ENDS, "tolerance")), "effort", "deploy")  # may change


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
    if config.network is not None and config.measure.finalists:
        raise PrunerError(
            f"measure.finalists={config.measure.finalists}: networks have no finalists; leave it "
            "out, or name an operator (workload=) without variants=true"
        )
    if config.network is not None and config.list:
        return list_run(config, folder)
    if config.network is not None and not effort.measures:
        effort.budget(plain(config.budget), None)  # refuses an end that would have no effect
        words = [word for word in words_of("policy") if word != NETWORK_POLICY]
        chosen = f"policy={choice('policy')}"
        if folder is None and chosen != NETWORK_POLICY and not words:
            words = [chosen]  # by experiment=
        if words:
            raise PrunerError(
                f"{' '.join(words)}: effort=draft has a search of its own; leave out policy, or "
                "choose an effort that measures"
            )
        for name in ("checkpoint", "warm_start", "compile_only"):
            if config[name]:
                raise PrunerError(
                    f"{name}={config[name]}: effort=draft measures and learns nothing; leave it out"
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
