"""``pruner deploy run=RUN``: build libraries of a run's network or operators."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pruner.cli.shared.options import plain, several
from pruner.cli.shared.output import say
from pruner.cli.shared.runs import CONFIG_FILE, read_config
from pruner.cli.tuning.network import database_of, deploy_run, network_platform, run_draft
from pruner.cli.tuning.platform import placed_platform
from pruner.errors import DataError, PrunerError
from pruner.files import load_metrics
from pruner.study.network.page import write_report
from pruner.tune.compare.baselines import FOR_KERNELS, Resources, by_default, check_names
from pruner.tune.compare.benchmark import BenchmarkSettings
from pruner.tune.compare.compare_runs import (
    KERNEL_BENCHMARK,
    check_equal,
    check_others,
    check_run_names,
    compare_kernels,
    compare_network,
)
from pruner.tune.deploy.build import network_worker
from pruner.tune.deploy.built_files import deploying
from pruner.tune.deploy.kernels import deploy_kernels
from pruner.tune.deploy.network import cannot_run
from pruner.tune.kinds import OPENCL
from pruner.tune.measure.energy import EnergyMeter, energy_meter
from pruner.tune.measure.measurer import Platform
from pruner.tune.run.database import same_target
from pruner.tune.workloads import Workload, load_workloads

_LONGEST_TURN_S = 60.0  # of a turn with counted energy


def deploy(config: DictConfig) -> dict[str, Any]:
    """Run the command; return the object of the last line."""
    folder = Path(config.run)
    run_config = _read_run_config(folder)
    if load_metrics(folder) is None:
        say(f"{folder}: this run is not finished; its best so far are taken")
    with deploying(folder):
        if run_config.get("network") is None:
            return _operators(config, folder, run_config)
        others = [Path(other) for other in several(config.compare)]
        check_names(several(config.baselines))
        check_others(folder, others)
        names = by_default() if config.baselines is None else several(config.baselines)
        _check_energy(config, timed=bool(names or others))
        # one process builds all libraries: its import takes seconds
        with network_worker() as worker:
            row = deploy_run(
                folder,
                run_config,
                draft=config.draft,
                cuda_graph=config.cuda_graph,
                worker=worker,
            )
            platform = network_platform(folder, run_config)
            reason, found = cannot_run(platform), {}
            if reason is not None and (config.baselines or others):
                say(f"no comparison: {reason}")
            if reason is None and (names or others):
                settings, meter = _energy(config, platform, BenchmarkSettings())
                compared = compare_network(
                    folder,
                    names,
                    others,
                    platform=platform,
                    analyzer=run_draft(platform, run_config),
                    settings=settings,
                    meter=meter,
                    worker=worker,
                    log=say,
                )
                found = compared.by_name
                say("\n".join(compared.lines()))
        report = write_report(folder, others)
        say(f"report: {report}")
        return {**row, "beside": found, "report": str(report)}


def _operators(config: DictConfig, folder: Path, run_config: DictConfig) -> dict[str, Any]:
    platform = placed_platform(run_config)
    workloads = load_workloads(plain(run_config.workload))
    _check_baselines(config, folder, platform, workloads)
    kernels = deploy_kernels(folder, workloads, platform.target, database_of(run_config))
    for task, (library, *sources) in kernels.items():
        say(f"{task}: {library}, {', '.join(p.name for p in sources)}")
    say("docs/library.md shows how to call them")
    timed = _compared_kernels(config, folder, platform, workloads)
    return {
        "run_dir": str(folder),
        "target": platform.target_json,
        "kernels": {
            task: {"library": str(library), "sources": list(map(str, sources))}
            for task, (library, *sources) in kernels.items()
        },
        **({"beside": timed} if timed else {}),
    }


def _check_baselines(
    config: DictConfig, folder: Path, platform: Platform, workloads: Sequence[Workload]
) -> None:
    others = [Path(other) for other in several(config.compare)]
    check_names(several(config.baselines), FOR_KERNELS)
    _check_energy(config, timed=bool(config.baselines or others))
    for name, default in (("draft", True), ("cuda_graph", False)):
        if config[name] != default:
            given = str(config[name]).lower()
            raise PrunerError(f"{name}={given} is for networks; leave it out for operators")
    if platform.device == OPENCL and config.baselines:
        raise PrunerError(
            f"baselines={config.baselines}: torch runs on no OpenCL device; leave it out"
        )
    check_run_names(folder, others)
    reason = cannot_run(platform)
    if reason is not None and (config.baselines or others):
        raise PrunerError(f"{folder}: no comparison is possible, {reason}; add baselines=[]")
    for other in others:
        theirs = _read_run_config(other)
        if theirs.network is not None:
            raise DataError(f"compare={other}: the run of a network; name runs of operators")
        target = placed_platform(theirs).target
        check_equal(other, workloads, load_workloads(plain(theirs.workload)))
        if not same_target(platform.target, target):
            raise DataError(f"compare={other}: tuned for {target}, not for {platform.target}")


def _compared_kernels(
    config: DictConfig, folder: Path, platform: Platform, workloads: Sequence[Workload]
) -> dict[str, Any]:
    names, others = several(config.baselines), [Path(other) for other in several(config.compare)]
    if not (names or others):
        return {}
    settings, meter = _energy(config, platform, KERNEL_BENCHMARK)
    found = compare_kernels(
        folder,
        workloads,
        names,
        others,
        resources=Resources.of(platform),
        settings=settings,
        meter=meter,
        log=say,
    )
    for task, compared in found.items():
        say("\n".join([task, *compared.lines()]))
    return {task: compared.by_name for task, compared in found.items()}


def _check_energy(config: DictConfig, *, timed: bool) -> None:
    seconds = config.energy
    if not 0 <= seconds <= _LONGEST_TURN_S:
        raise PrunerError(f"energy={seconds}: seconds of a turn, 0 to {_LONGEST_TURN_S:g}")
    if seconds and not timed:
        raise PrunerError(f"energy={seconds}: nothing is timed; add baselines=[eager]")


def _energy(
    config: DictConfig, platform: Platform, settings: BenchmarkSettings
) -> tuple[BenchmarkSettings, EnergyMeter | None]:
    seconds = config.energy
    meter = energy_meter(platform.device) if seconds else None
    if seconds and meter is None:
        say("no energy is measured: neither NVML nor powercap is available")
    return replace(settings, energy_s=float(seconds)), meter


def _read_run_config(folder: Path) -> DictConfig:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise DataError(f"run={folder}: no {CONFIG_FILE} there; name a run folder of tune.py")
    found = read_config(path)
    lacking = [name for name in ("network", "platform", "workload") if name not in found]
    if lacking:
        raise DataError(f"run={folder}: a run of another command, it has no {lacking[0]}=")
    return found
