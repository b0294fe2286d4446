"""Damaged lines of one file after another, in processes that do nothing else."""

import gzip
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pruner import features
from pruner.data.quarantine import Quarantine
from pruner.data.tasks import read_tasks
from pruner.errors import UnsupportedProgram
from pruner.program.replay import Definitions
from tests.attack.mutations import damaged

MAX_LINE_S = 0.2
AGAIN = 3  # a line that took longer is timed so often: something else may have held it up


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of the lines of a file; `wrong` counts what should not be, by its name."""

    lines: int
    slowest_s: float
    peak_bytes: int  # of the process, so far
    wrong: Counter[str] = field(default_factory=Counter)


def good_lines(path: Path, number: int = 40) -> list[bytes]:
    return gzip.decompress(path.read_bytes()).splitlines()[:number]


def verdicts(path: Path, tasks: Definitions | None = None) -> tuple[int, int, Counter[str]]:
    """(programs with features, programs without, lines set aside by reason) of a record file;
    `tasks`: what lies beside it."""
    quarantine, valid, failed = Quarantine(), 0, 0
    for task in read_tasks(path, quarantine, duplicates="keep"):
        try:
            found = features.featurize_records(
                task.workload_key, task.fused, task.steps, tasks=tasks
            )
        except UnsupportedProgram:
            failed += len(task)
            continue
        valid, failed = valid + int(found.valid.sum()), failed + len(found.failures)
        assert np.isfinite(found.statement).all()
        assert np.isfinite(found.dataflow).all()
    return valid, failed, quarantine.counts


def counted(path: Path) -> tuple[Counter[str], Counter[str]]:
    """What came of a file's lines; an exception is a count, too, by its name."""
    try:
        valid, failed, aside = verdicts(path)
    except Exception as error:  # a traceback of a command, one of the things that are looked for
        return Counter(), Counter([f"traceback: {type(error).__name__} {error}"[:200]])
    wrong = Counter({"bad_line": aside["bad_line"]})
    return Counter(valid=valid, failed=failed, aside=aside.total()), +wrong


def attacked_file(file: Path, number: int, seed: int) -> Verdict:
    """So many damaged lines of a file, each read and featurised alone, then all together."""
    slowest, wrong, alone = 0.0, Counter[str](), Counter[str]()
    lines = [line for _, line in damaged(good_lines(file), number, seed)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file.name.removesuffix(".gz")
        for line in lines:
            path.write_bytes(line + b"\n")
            found, odd, seconds = _timed(path)
            alone, wrong = alone + found, wrong + odd
            wrong["counts"] += found.total() != 1
            slowest = max(slowest, seconds)
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        together, odd = counted(path)
        wrong["together"] += together != alone
    wrong["slow"] += slowest > MAX_LINE_S
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Verdict(lines=number, slowest_s=slowest, peak_bytes=peak, wrong=+(wrong + odd))


def _timed(path: Path) -> tuple[Counter[str], Counter[str], float]:
    found: list[tuple[Counter[str], Counter[str]]] = []
    seconds = least_s(lambda: found.append(counted(path)))
    return *found[-1], seconds


def least_s(job: Callable[[], object]) -> float:
    """Seconds of a job on the processor, the least of some tries where it took long."""
    least = float("inf")
    for _ in range(AGAIN):
        start = time.process_time()
        job()
        least = min(least, time.process_time() - start)
        if least <= MAX_LINE_S:
            break
    return least
