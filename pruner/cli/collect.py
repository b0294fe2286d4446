"""``python collect.py``: measure programs with Ansor, or pools of MetaSchedule's."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pruner.cli.shared.door import run_door
from pruner.cli.shared.output import say
from pruner.cli.tuning.pools import collect_pools
from pruner.errors import PrunerError
from pruner.tune.collect.driver import CollectPlan, collect
from pruner.tune.collect.noise import noise_summary, remeasure
from pruner.tune.collect.tasks import select_tasks
from pruner.tune.measure.targets import CpuTarget, missing_flags, select_targets
from pruner.tune.rivals.ansor_environment import install, interpreter


def runnable_targets(platform: str) -> list[CpuTarget]:
    """Return the targets that this machine can run; with platform=all the others are left out.

    Raises:
        PrunerError: none of the targets asked for can run here.
    """
    targets = select_targets(platform)
    missing = {target.platform: missing_flags(target) for target in targets}
    for name, flags in missing.items():
        if flags:
            say(f"{name} is left out: this CPU lacks {', '.join(flags)}")
    runnable = [target for target in targets if not missing[target.platform]]
    if not runnable:
        raise PrunerError(f"this CPU cannot run platform={platform}; try platform=all")
    return runnable


def plan_from(config: DictConfig) -> CollectPlan:
    """Check the options and turn them into a plan."""
    if not isinstance(config.programs, int) or config.programs < 2:
        raise PrunerError(f"programs={config.programs}; use a whole number, 2 or more")
    workload: Any = config.workload
    if not isinstance(workload, str):
        workload = OmegaConf.to_container(workload)
    return CollectPlan(
        tasks=select_tasks(workload, tuple(config.fused)),
        targets=runnable_targets(config.platform),
        python=interpreter(Path(config.environment).absolute()),
        out=Path(config.out),
        num_programs=config.programs,
        seed=config.seed,
        repeats=config.measure.repeats,
        min_repeat_ms=config.measure.min_repeat_ms,
        max_spread=config.measure.max_spread,
        program_timeout_s=config.program_timeout_s,
        child_timeout_s=config.child_timeout_s,
    )


def run(config: DictConfig) -> dict[str, Any]:
    """Collect with the backend asked for; return the object of the last line."""
    if config.backend not in BACKENDS:
        raise PrunerError(f"backend={config.backend} is unknown; known: {', '.join(BACKENDS)}")
    return BACKENDS[config.backend](config)


def collect_ansor(config: DictConfig) -> dict[str, Any]:
    """Install, measure again or collect; return the object of the last line."""
    start = time.monotonic()
    if config.setup:
        install(Path(config.environment).absolute())
        return {"records": 0, "failed": 0, "seconds": time.monotonic() - start}
    plan = plan_from(config)
    if config.remeasure:
        rows = remeasure(plan, config.remeasure, say)
        result = {"records": len(rows), "failed": 0, "seconds": time.monotonic() - start}
    else:
        result = asdict(collect(plan, say))
    return result | {"out": str(plan.out), **noise_summary(plan.out)}


BACKENDS = {"ansor": collect_ansor, "tvm": collect_pools}


def main() -> None:
    """Open the door."""
    run_door("collect", run)


if __name__ == "__main__":
    main()
