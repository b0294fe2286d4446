"""``python deploy.py run=RUN``: the tuned network or operators of a run as libraries."""

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pruner.cli.shared.door import run_door
from pruner.cli.shared.options import plain
from pruner.cli.shared.output import say
from pruner.cli.shared.runs import CONFIG_FILE
from pruner.errors import DataError, PrunerError
from pruner.files import load_metrics
from pruner.models.analyzer.analyzer import Analyzer
from pruner.program.device import device_from_mapping
from pruner.study.network.page import write_report
from pruner.tune.contenders.beside import set_run_beside
from pruner.tune.contenders.lineup import installed
from pruner.tune.deploy.kernels import deploy_kernels
from pruner.tune.deploy.network import LOADER, deploy_network
from pruner.tune.measure.jobs import RpcAddress
from pruner.tune.measure.machine import make_platform
from pruner.tune.measure.measurer import Platform
from pruner.tune.networks.request import REQUEST, NetworkRequest
from pruner.tune.run.options import platform_analyzer
from pruner.tune.workloads import load_workloads


def deploy(config: DictConfig) -> dict[str, Any]:
    """Run the command; returns the object of the last line."""
    folder = Path(config.run)
    asked = _asked(folder)
    if load_metrics(folder) is None:
        say(f"{folder}: this run is not finished; its best so far are taken")
    if asked.get("network") is not None:
        row = deploy_run(folder, asked, draft=config.draft)
        return {**row, **_beside(config, folder, asked)}
    platform = _platform(asked, plain(asked.target))
    workloads = load_workloads(plain(asked.workload))
    kernels = deploy_kernels(folder, workloads, platform.target, _database(asked))
    for kernel in kernels:
        say(f"{kernel.task}: {kernel.library}, {', '.join(p.name for p in kernel.sources)}")
    say("docs/library.md says how to call them")
    return {
        "run_dir": str(folder),
        "target": platform.target_json,
        "kernels": {
            kernel.task: {"library": str(kernel.library), "sources": list(map(str, kernel.sources))}
            for kernel in kernels
        },
    }


def deploy_run(folder: Path, asked: DictConfig, *, draft: bool) -> dict[str, Any]:
    """The network of a run folder with the configuration `asked`; the content of ``deploy.json``.

    Raises:
        PrunerError: see :func:`pruner.tune.deploy.network.deploy_network`.
    """
    request = folder / REQUEST
    if not request.is_file():
        raise DataError(f"{folder}: no {REQUEST}, its import did not begin; start a new run")
    platform = network_platform(folder, asked)
    deployed = deploy_network(
        folder,
        platform,
        _analyzer(platform),
        database=_database(asked),
        draft=draft,
        seed=asked.seed,
        tell=say,
    )
    row = deployed.row()
    counts = f"{deployed.applied} measured, {deployed.drafted} drafted schedules"
    say(f"{deployed.library}: {deployed.size_bytes / 1e6:.1f} MB, {counts}")
    if row["latency_s"] is not None:
        say(
            f"{1e3 * row['latency_s']['median']:.4g} ms (median, {deployed.threads} threads), "
            f"relative error {deployed.relative_error:.2g}"
        )
    for note in deployed.notes:
        say(note)
    say(f"load it as {folder / LOADER} does")
    return row


def _beside(config: DictConfig, folder: Path, asked: DictConfig) -> dict[str, Any]:
    """Time the contenders beside it and write the report; what the last line gets of both."""
    platform = network_platform(folder, asked)
    names = plain(config.beside)
    if names is None:
        names = installed() if platform.device == "cpu" else []
    others = [Path(other) for other in plain(config.compare)]
    found = {}
    if names or others:
        analyzer = _analyzer(platform)
        rows = set_run_beside(folder, names, others, platform=platform, analyzer=analyzer, tell=say)
        found = {row.name: row.row() for row in rows}
        for row in sorted(rows, key=lambda row: row.median_s or float("inf")):
            if row.median_s is not None:
                say(f"{row.label:40s} {1e3 * row.median_s:10.4g} ms")
    report = write_report(folder, others)
    say(f"report: {report}")
    return {"beside": found, "report": str(report)}


def network_platform(folder: Path, asked: DictConfig) -> Platform:
    """The platform that a network's tasks were found for."""
    target = json.dumps(dict(NetworkRequest.read(folder / REQUEST).target))
    return _platform(asked, target)


def _asked(folder: Path) -> DictConfig:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise DataError(f"run={folder}: no {CONFIG_FILE} there; name a run folder of tune.py")
    found = OmegaConf.load(path)
    assert isinstance(found, DictConfig), type(found)
    lacking = [name for name in ("network", "platform", "workload") if name not in found]
    if lacking:
        raise DataError(f"run={folder}: a run of another command, it has no {lacking[0]}=")
    return found


def _platform(asked: DictConfig, target: Any) -> Platform:
    """The platform of the run, for the same target; its device is not asked."""
    address = None
    if asked.runner.kind == "rpc":
        names = ("host", "port", "key", "session_timeout_s")
        address = RpcAddress(**{name: asked.runner[name] for name in names})
    device = device_from_mapping(plain(asked.platform))
    return make_platform(device, target=target, address=address)


def _analyzer(platform: Platform) -> Analyzer | None:
    try:
        return platform_analyzer(platform)
    except PrunerError as error:
        say(f"no draft: {error}")
        return None


def _database(asked: DictConfig) -> Path | None:
    return None if asked.work_dir is None else Path(asked.work_dir)


def main() -> None:
    """Open the door."""
    run_door("deploy", deploy)


if __name__ == "__main__":
    main()
