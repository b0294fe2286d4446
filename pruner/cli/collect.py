"""``python collect.py``: measure CPU schedules with Ansor (see conf/collect/collect.yaml)."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

from pruner.errors import PrunerError
from pruner.tune.ansor.driver import CollectPlan, collect
from pruner.tune.ansor.environment import install, interpreter
from pruner.tune.ansor.noise import noise_summary, remeasure
from pruner.tune.ansor.targets import CpuTarget, missing_flags, select_targets
from pruner.tune.ansor.tasks import select_tasks

# a folder of its own: in conf/, `platform` and others are groups of files and take no plain value
CONF = Path(__file__).resolve().parents[2] / "conf" / "collect"


def report(line: str) -> None:
    """Show progress."""
    print(line, file=sys.stderr, flush=True)


def runnable_targets(platform: str) -> list[CpuTarget]:
    """Return the targets that this machine can run; with platform=all the others are left out.

    Raises:
        PrunerError: none of the targets asked for can run here.
    """
    targets = select_targets(platform)
    missing = {target.platform: missing_flags(target) for target in targets}
    for name, flags in missing.items():
        if flags:
            report(f"{name} is left out: this CPU lacks {', '.join(flags)}")
    runnable = [target for target in targets if not missing[target.platform]]
    if not runnable:
        raise PrunerError(f"this CPU cannot run platform={platform}; try platform=all")
    return runnable


def plan_from(config: DictConfig) -> CollectPlan:
    """Check the options and turn them into a plan."""
    if config.backend != "ansor":
        raise PrunerError(f"backend={config.backend} is unknown; use backend=ansor")
    if config.num_programs < 2:
        raise PrunerError(f"num_programs={config.num_programs} is too few; use 2 or more")
    workload: Any = config.workload
    if not isinstance(workload, str):
        workload = OmegaConf.to_container(workload)
    return CollectPlan(
        tasks=select_tasks(workload, tuple(config.fused)),
        targets=runnable_targets(config.platform),
        python=interpreter(Path(config.environment).absolute()),
        out=Path(config.out),
        num_programs=config.num_programs,
        seed=config.seed,
        repeats=config.measure.repeats,
        min_repeat_ms=config.measure.min_repeat_ms,
        max_spread=config.measure.max_spread,
        child_timeout_s=config.child_timeout_s,
    )


def run(config: DictConfig) -> dict[str, Any]:
    """Install, measure again or collect; return the object of the last line."""
    start = time.monotonic()
    if config.setup:
        install(Path(config.environment).absolute())
        return {"records": 0, "failed": 0, "seconds": time.monotonic() - start}
    plan = plan_from(config)
    if config.remeasure:
        rows = remeasure(plan, config.remeasure, report)
        result = {"records": len(rows), "failed": 0, "seconds": time.monotonic() - start}
    else:
        result = asdict(collect(plan, report))
    return result | {"out": str(plan.out), **noise_summary(plan.out)}


@hydra.main(version_base=None, config_path=str(CONF), config_name="collect")
def _hydra_main(config: DictConfig) -> None:
    try:
        result = run(config)
    except PrunerError as error:
        report(f"error: {error}")
        sys.exit(2)
    print(json.dumps(result), flush=True)


def main() -> None:
    """Run the command."""
    _hydra_main()


if __name__ == "__main__":
    main()
