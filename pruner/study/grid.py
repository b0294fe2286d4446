"""Grids of jobs that leave a file each; an interrupted grid continues."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.files import read_json, write_json
from pruner.processes import in_workers
from pruner.progress import Log, silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work that leaves one JSON file (None: nothing stored); done once it exists.

    ``about``: all that decides the result besides the name; it is stored in the file, a JSON
    object, and a result with another ``about`` counts as missing.
    """

    name: str
    run: Callable[[], Any]
    leaves: Path | None = None
    about: Any = None

    @property
    def result(self) -> Any:
        """The job's result, None before it; raises `DataError` for a damaged file."""
        if self.leaves is None or not self.leaves.is_file():
            return None
        found = read_json(self.leaves)
        return found if self.about is None or found.get("about") == self.about else None

    def compute(self) -> Any:
        """Run the job; store its result, unless None (unfinished) or stored by `run`."""
        found = self.run()
        if found is None:
            return None
        if self.about is not None:
            found = {**found, "about": self.about}
        if self.leaves is not None and self.result is None:
            self.leaves.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.leaves, found)
        return found


def results(
    jobs: Sequence[Job], *, num_workers: int = 1, log: Log = silent, again: str = "call it again"
) -> Iterator[Any]:
    """Yield the result of every job, in order; processes share the missing jobs.

    Raises PrunerError, with `again` as advice, after all others, where a process had no result.
    """
    missing = [job for job in jobs if job.leaves is not None and job.result is None]
    number = min(num_workers, len(missing))
    if number < 2:
        for job in jobs:
            found = job.result
            yield job.compute() if found is None else found
        return
    with in_workers(missing, Job.compute, number, log=log) as ended:
        done = ended()
        for job in jobs:
            found = job.compute() if job.leaves is None else job.result
            while found is None and next(done, None):  # another job has ended
                found = job.result
            if found is None:
                raise PrunerError(f"{job.name}: no result; {again}")
            yield found


def finished(path: Path) -> bool:
    """Whether a command left `path` without the mark of an interrupted run."""
    return path.is_file() and not read_json(path, dict).get("interrupted", False)
