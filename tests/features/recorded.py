"""Programs of the development data, for tests that skip where it is absent."""

from pathlib import Path

import pytest

from pruner.data.quarantine import Quarantine
from pruner.data.tasks import read_tasks
from pruner.program.dag.dag import ComputeDAG
from pruner.program.replay import find_dag


def recorded_task(shared: Path, name: str) -> tuple[ComputeDAG, list]:
    """Definition and recorded schedules of ``platform/task``."""
    path = shared / "data" / "gpu-records" / "measure_records" / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"development data is absent: {path.name}")
    task = read_tasks(path, Quarantine())[0]
    return find_dag(task.workload_key, task.fused), task.steps
