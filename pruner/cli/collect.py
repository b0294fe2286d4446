"""``pruner collect``: measure pools of evenly drawn programs on any device."""

import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from pruner.cli.shared.known import files_of
from pruner.cli.shared.options import plain, several
from pruner.cli.shared.output import print_result, say
from pruner.cli.tuning.interrupts import Interrupts
from pruner.cli.tuning.platform import address_of, check_device, network_format
from pruner.data.networks import FOLDER as NETWORKS
from pruner.errors import PrunerError, check_chosen
from pruner.files import hold
from pruner.paths import conf_folder
from pruner.program.device import Device, load_device
from pruner.tune.kinds import OPENCL
from pruner.tune.measure.jobs import Timing
from pruner.tune.measure.machine import check_health, make_platform, missing_device, on_opencl
from pruner.tune.measure.measurer import MeasureSettings, Platform
from pruner.tune.measure.targets import CPU_TARGETS, missing_flags
from pruner.tune.networks.extraction import TASKS, extract_tasks, read_tasks
from pruner.tune.networks.request import REQUEST, NetworkRequest, is_kept
from pruner.tune.networks.sizes import NetworkOptions
from pruner.tune.networks.source import NetworkSource
from pruner.tune.pools.collector import Collector, PoolPlan, hours
from pruner.tune.pools.measured_set import PoolPlatform
from pruner.tune.pools.records import PoolSettings, bundle
from pruner.tune.rivals.ansor import install
from pruner.tune.workloads import Workload, load_workloads

ALL = "all"  # platform=all: the described CPUs that this machine can run


def collect(config: DictConfig) -> dict[str, Any]:
    """Collect, estimate, bundle, or install Ansor; return the last line."""
    if config.backend != "tvm":
        raise PrunerError(
            f"backend={config.backend}: pruner collect measures by TVM; for records of Ansor use "
            "tune.py policy=ansor_tvm workload=matmul platform=cpu-avx2 measure.repeats=5, then "
            "pruner import_logs logs=RUN/ansor.json out=DIR platform=cpu-avx2"
        )
    if config.setup:
        start = time.monotonic()
        install(Path(config.environment).absolute())
        return {"records": 0, "failed": 0, "seconds": time.monotonic() - start}
    if config.bundle is not None:
        out = Path(config.bundle)
        counts = bundle(Path(config.out), out)
        what = f"{counts['records']} records of {counts['pools']} pools"
        say(f"{out}: {what}, checksums in SHA256SUMS")
        return counts | {"out": str(out)}
    plan = plan_of(config)
    plan.out.mkdir(parents=True, exist_ok=True)
    hold(plan.out)
    interrupts = Interrupts(say)
    with interrupts as asked:
        collector = Collector(plan, say, asked)
        num = sum(len(place.workloads) for place in plan.platforms)
        say(
            f"{num} pools of {plan.settings.programs} programs on "
            f"{', '.join(place.platform.name for place in plan.platforms)}, into {plan.out}"
        )
        work = collector.prepare if config.prepare else collector.collect
        found = collector.estimate() if config.plan else work()
    result = asdict(found) | {"out": str(plan.out)}
    if found.unsuccessful:
        what = "failed, have no program, or programs that are NOT CHECKED"
        say(f"{len(found.unsuccessful)} pools {what}: {', '.join(found.unsuccessful)}")
    if found.interrupted:
        say("ended early; the same command continues")
        print_result(result)
        sys.exit(interrupts.exit_code)
    if config.prepare:
        say(f"{found.built} programs are built; the same command without prepare=true times them")
    elif config.plan:
        rest = ", without pools that failed" if found.unsuccessful else ""
        say(f"about {hours(found.left_s)} for all that is left{rest}; plan=false measures it")
    elif not found.records:
        raise PrunerError(f"no program could be measured: {'; '.join(found.short)}")
    return result


def plan_of(config: DictConfig) -> PoolPlan:
    """Convert the options to typed values; raise `PrunerError` for impossible options."""
    if config.plan and config.prepare:
        raise PrunerError("plan=true measures a few programs, prepare=true none: give one")
    if (config.workloads is None) == (config.network is None):
        raise PrunerError("pruner collect measures workloads=FILE.yaml or network=NAME: give one")
    if config.network is not None:
        NetworkSource(name=str(config.network)).check_name()
    names = ("repeats", "min_repeat_ms", "flush_cache")
    timing = Timing(**{name: config.measure[name] for name in names})
    measure = MeasureSettings(
        timing=timing,
        builders=config.measure.builders,
        build_timeout_s=config.program_timeout_s,
        run_timeout_s=config.program_timeout_s,
        reference_timeout_s=config.measure.reference_timeout_s,
        check=config.measure.check,
    )
    pool = {name: config.pool[name] for name in ("evolved", "apart_s", "agree", "most")}
    settings = PoolSettings(programs=config.programs, seed=config.seed, **pool)
    out = Path(config.out)
    found = [(device, _platform(config, device)) for device in _devices(config)]
    check_device(config.measure.device, [platform for _, platform in found])
    places = []
    for device, platform in found:
        workloads = _workloads(config, platform, out)
        places.append(PoolPlatform(platform=platform, device=device, workloads=workloads))
    return PoolPlan(platforms=places, out=out, settings=settings, measure=measure)


def _devices(config: DictConfig) -> list[Device]:
    names = several(config.platform)
    on_this_machine = config.runner.kind != "rpc"
    if ALL in names:
        names = [target.platform for target in CPU_TARGETS]
    lacking = {t.platform: missing_flags(t) for t in CPU_TARGETS if on_this_machine}
    for name in names:
        if lacking.get(name):
            say(f"{name} is left out: this CPU lacks {', '.join(lacking[name])}")
    kept = [name for name in names if not lacking.get(name)]
    if not kept:
        raise PrunerError(f"this CPU cannot run platform={config.platform}; try platform=all")
    return [load_device(conf_folder() / "platform" / f"{name}.yaml") for name in kept]


def _platform(config: DictConfig, device: Device) -> Platform:
    address = address_of(config)
    if address is not None:
        check_health(address, config.runner.health_timeout_s)
    platform = make_platform(device, address=address)
    if platform.device == OPENCL:
        with suppress(PrunerError) if config.prepare else nullcontext():  # it needs no device
            platform, found = on_opencl(platform, device, config.measure.device)
            say(f"OpenCL device {found}")
    reason = None if config.prepare else missing_device(platform)
    if reason is not None:
        raise PrunerError(
            f"platform={device.name}: {reason}; use runner=rpc, prepare=true or platform=all"
        )
    return platform


def _workloads(config: DictConfig, platform: Platform, out: Path) -> list[Workload]:
    found = (
        load_workloads({"tasks": _listed(config.workloads)})
        if config.network is None
        else _network(config, platform, out)
    )
    wanted = several(config.tasks)
    check_chosen("tasks", wanted, [workload.name for workload in found])
    return [workload for workload in found if not wanted or workload.name in wanted]


def _listed(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, str):
        return list(plain(given))
    path = Path(given)
    if not path.is_file():
        beside = conf_folder() / "pools" / f"{given}.yaml"
        if not beside.is_file():
            known = ", ".join(files_of("pools"))
            raise PrunerError(f"workloads={given}: no such file; lists that are there: {known}")
        path = beside
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))["tasks"]
        return [dict(entry) for entry in entries]
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise PrunerError(f"workloads={given}: a YAML file with a list tasks: ({error})") from error


def _network(config: DictConfig, platform: Platform, out: Path) -> list[Workload]:
    source = NetworkSource(name=str(config.network), options=NetworkOptions(), seed=config.seed)
    folder = out / NETWORKS / platform.name / source.label
    if (folder / TASKS).is_file():
        known = NetworkRequest.read(folder / REQUEST).source.name
        if known not in (source.name, source.resolved.name):
            raise PrunerError(f"{folder} has the tasks of another network, {known}; choose out=")
        if not is_kept(folder / TASKS, source):
            say(
                f"{folder} has the tasks of an earlier {source.path}; another out= imports it again"
            )
    else:
        folder.mkdir(parents=True, exist_ok=True)
        form = network_format(platform.device, precision="float32")
        say(f"importing {source.label}, {form} ...")
        extract_tasks(source, platform.target_json, folder, form)
    return [task.workload for task in read_tasks(folder / TASKS) if task.tuned]
