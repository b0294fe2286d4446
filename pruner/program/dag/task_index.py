"""Find the compute DAG of a workload key: standard operator or TenSet task."""

from __future__ import annotations

from pathlib import Path

from pruner.data.tenset.task_pickle import PATTERN, read_task_pickle
from pruner.errors import DataError, PrunerError, UnsupportedProgram
from pruner.program.dag.dag import ComputeDAG
from pruner.program.dag.operators import dag_for_workload, read_key
from pruner.program.dag.tenset import dag_from_json


class TaskIndex:
    """The tasks of a folder of TenSet's ``*.task.pkl`` files, by workload key.

    Files are read until the requested key is found; of a file read earlier only the keys stay in
    memory. A key has the same DAG in every file.
    """

    def __init__(self, network_info: Path | str) -> None:
        """Raises :class:`DataError` when the folder is missing or has no task file."""
        self.folder = Path(network_info)
        # Reversed because `pop` takes from the end: files are read in the order of their names.
        self._unread = sorted(self.folder.glob(PATTERN), reverse=True)
        self._file_of: dict[str, Path] = {}
        self._dags: dict[str, ComputeDAG] = {}
        if not self._unread:
            raise DataError(f"{self.folder}: no {PATTERN} files; expected TenSet's network_info")

    def dag(self, workload_key: str) -> ComputeDAG:
        """Return the DAG of a key.

        Raises :class:`UnsupportedProgram` (``unknown-task``, or a reason of
        :func:`~pruner.program.dag.tenset.dag_from_json`); :class:`DataError` for a damaged task
        file.
        """
        if workload_key not in self._dags:
            # Converted once: a task has thousands of records.
            self._dags[workload_key] = dag_from_json(self._graph(workload_key))
        return self._dags[workload_key]

    def _read(self, file: Path) -> dict[str, str]:
        graphs = {task.workload_key: task.compute_dag for task in read_task_pickle(file)}
        for key in graphs:
            self._file_of.setdefault(key, file)
        return graphs

    def _graph(self, workload_key: str) -> str:
        while workload_key not in self._file_of and self._unread:
            graphs = self._read(self._unread.pop())
            if workload_key in graphs:
                return graphs[workload_key]
        if workload_key not in self._file_of:
            raise UnsupportedProgram("unknown-task", f"{workload_key} is not in {self.folder}")
        # The file's graphs were dropped after the first read (they are large): read it again.
        return self._read(self._file_of[workload_key])[workload_key]


def find_dag(
    workload_key: str, fused: tuple[str, ...] = (), tasks: TaskIndex | None = None
) -> ComputeDAG:
    """Return a record's DAG: a standard operator with ``fused``, or a task of ``tasks``.

    Raises as :func:`~pruner.program.dag.operators.dag_for_workload` and :meth:`TaskIndex.dag`.
    """
    try:
        if read_key(workload_key).operator is not None:
            return dag_for_workload(workload_key, fused)
        if fused:
            raise UnsupportedProgram("unknown-epilogue", f"{fused} behind the task {workload_key}")
        if tasks is None:
            raise UnsupportedProgram(
                "unknown-task",
                f"{workload_key:.120} is no operator that is defined here: define it "
                "(CONTRIBUTING.md, Add an operator), or give network_info with its definition",
            )
        return tasks.dag(workload_key)
    except (PrunerError, MemoryError):
        raise
    except Exception as error:  # unforeseen arguments cost their task, not the run
        detail = f"{workload_key:.80}: {type(error).__name__} {error}"
        raise UnsupportedProgram("bad-arguments", detail) from error
