"""TenSet's own task files and the texts and programs that the original makes of them."""

import gzip
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pruner.data.tenset.task_pickle import PickledTask, read_task_pickle


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenTask:
    """One task: its identity, its DAG's text by the original, the steps of some programs."""

    name: str
    workload_key: str
    target: str
    dag_text: str
    steps: list[list[list[Any]]]


def unpack_network_info(shared: Path, folder: Path) -> Path:
    """Unpack the task files; skips the test where they are absent."""
    archive = shared / "data" / "tenset-network-info" / "task-pickles.tar.xz"
    if not archive.is_file():
        pytest.skip(f"no task files: {archive} is absent")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder


def unique_tasks(network_info: Path) -> dict[tuple[str, str], PickledTask]:
    """Tasks of all files by (target, workload key)."""
    tasks = {}
    for file in sorted(network_info.glob("*.task.pkl")):
        for task in read_task_pickle(file):
            tasks.setdefault((task.target, task.workload_key), task)
    return tasks


def golden_tasks(shared: Path) -> list[GoldenTask]:
    """All tasks with a printed DAG; skips the test where they are absent."""
    files = sorted((shared / "golden" / "tenset").glob("*.dag.txt"))
    if not files:
        pytest.skip("no printed DAGs: ../shared/golden/tenset is absent")
    found = []
    for file in files:
        name = file.name.removesuffix(".dag.txt")
        with gzip.open(file.with_name(f"{name}.json.gz"), "rt") as lines:
            records = [json.loads(line) for line in lines]
        found.append(
            GoldenTask(
                name=name,
                workload_key=records[0]["i"][0][0],
                target=records[0]["i"][0][1],
                dag_text=file.read_text().split("\n----\n")[0].rstrip("\n") + "\n",
                steps=[record["i"][1][1] for record in records],
            )
        )
    return found
