"""Time feature extraction on one core: this engine, Ansor, MetaSchedule.

    python benchmarks/featurize.py --root DATA_ROOT --ansor ANSOR_PYTHON [--stream]

Ansor (TVM 0.19, in the environment of ``make ansor-env``) extracts features of the same records.
MetaSchedule (TVM 0.27) extracts features of candidates of the same operators. Each extractor runs
in a process of its own on one core. Times are CPU seconds, so other work on the machine does not
count. This engine starts at step lists and ends at statement, dataflow and analyzer features. Ansor
applies the steps, lowers and extracts. MetaSchedule replays the trace with its postprocessors and
extracts. The last line is one JSON object. ``ratio_min`` is the smallest ratio to the faster peer
over the cases, with 4,000 programs per task, as TenSet has them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from synthetic import as_steps, records_of, vectors

from pruner.data.workload import fused_from_name
from pruner.features import FeatureSpec, featurize
from pruner.files import write_json
from pruner.program.replay import find_dag
from pruner.program.te.skeleton import group_programs

HERE = Path(__file__).resolve().parent
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
SIZES = (1, 10, 100, 1000, 4000, 10000)
TENSET_PROGRAMS = 4000  # of one task
PEER_PROGRAMS = 12
OFFICIAL = FeatureSpec(dataflow="official", psa=True)
REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A record file, and the same operator for MetaSchedule, if it is compared."""

    name: str
    file: str
    metaschedule: list[Any] | None


CASES = (
    Case(
        name="conv2d 3x3, padded",
        file="v100/conv2d_128_64_56_56_64_3_3_1_SAME",
        metaschedule=["conv2d_layer", 128, 64, 56, 56, 64, 3, 3, 1, 1],
    ),
    Case(
        name="matmul",
        file="v100/matmul_65536_1024_1024",
        metaschedule=["matmul_layer", 65536, 1024, 1024],
    ),
    Case(name="depthwise 3x3, padded", file="v100/depthwise_conv2d_128_168_42_42_3_3_1_SAME",
         metaschedule=None),
)  # fmt: skip


def cpu_seconds(work: Callable[[], object]) -> list[float]:
    """CPU seconds of each repetition."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return times


def ours(path: Path) -> tuple[dict[int, list[float]], int]:
    """Seconds a program, for every batch size and repetition; number of records."""
    records = records_of(path)
    groups, _ = group_programs(records.steps)
    group, rng = groups[0], np.random.default_rng(0)  # of the most frequent skeleton
    template = records.steps[int(group.rows[0])]
    dag = find_dag(records.workload_key, fused_from_name(records.key.task))
    found = {}
    for size in SIZES:
        steps = as_steps(group, template, vectors(group, size, rng))
        times = cpu_seconds(lambda s=steps: featurize(dag, s, OFFICIAL))
        found[size] = [t / size for t in times]
    return found, len(records)


def peer(command: list[str], lines: list[str]) -> list[dict[str, float]]:
    """The measurements of a child process.

    Where it died on a program, it starts again behind that program.
    """
    found: list[dict[str, float]] = []
    skipped = 0
    while True:
        left = lines[len(found) + skipped :]
        done = subprocess.run(
            command,
            input="".join(left),
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": str(HERE.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        found += [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode == 0:
            return found
        if not left:
            raise SystemExit(f"{command[0]} failed: {done.stderr[-400:]}")
        skipped += 1


def ansor(python: Path, path: Path) -> list[dict[str, float]]:
    """Ansor's CPU seconds for some records of a file."""
    import gzip

    with gzip.open(path) as stream:
        records = stream.read().splitlines()
    chosen = records[:: max(1, len(records) // PEER_PROGRAMS)][:PEER_PROGRAMS]
    fused = list(fused_from_name(path.name.removesuffix(".json.gz")))
    lines = [json.dumps({"record": json.loads(r), "fused": fused}) + "\n" for r in chosen]
    times = peer([str(python), str(HERE / "ansor_child.py"), "cuda -arch=sm_70"], lines)
    return [t for t in times if not t["empty"]][1:]  # the first one warms up


def metaschedule(python: Path, operator: list[Any]) -> list[dict[str, float]]:
    """MetaSchedule's CPU seconds for candidates of an operator."""
    child = str(HERE / "metaschedule_child.py")
    return peer([str(python), child, str(PEER_PROGRAMS), json.dumps(operator)], [])[1:]


def median_ms(times: list[dict[str, float]], *names: str) -> float | None:
    """Median of the sum of some entries, milliseconds."""
    values = [sum(t[name] for name in names) for t in times]
    return round(1e3 * statistics.median(values), 3) if values else None


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Measure a case: ours by batch size, the peers, the ratios."""
    path = options.root / "measure_records" / f"{case.file}.json.gz"
    seconds, num_records = ours(path)
    one = {size: statistics.median(times) for size, times in seconds.items()}
    row: dict[str, Any] = {
        "case": case.name,
        "records": num_records,
        "us_per_program": {size: round(1e6 * value, 1) for size, value in one.items()},
        "spread": {
            size: round((max(times) - min(times)) / one[size], 2) for size, times in seconds.items()
        },
        "programs_per_second": round(1 / one[TENSET_PROGRAMS]),
    }
    peers = {}
    if options.ansor:
        times = ansor(options.ansor, path)
        row["ansor_ms"] = peers["ansor"] = median_ms(times, "extract_s")
    if case.metaschedule:
        times = metaschedule(options.tvm, case.metaschedule)
        row["metaschedule_ms"] = median_ms(times, "replay_s", "extract_s")
        row["metaschedule_extract_only_ms"] = median_ms(times, "extract_s")
        peers["metaschedule"] = row["metaschedule_ms"]
    known = {name: ms for name, ms in peers.items() if ms}
    row["ratios"] = {name: round(ms / 1e3 / one[TENSET_PROGRAMS], 1) for name, ms in known.items()}
    row["ratio"] = min(row["ratios"].values(), default=None)
    row["ratio_at_1000"] = round(min(known.values()) / 1e3 / one[1000], 1) if known else None
    return row


def stream(root: Path) -> dict[str, Any]:
    """Read and featurise every record file once; memory must stay flat."""
    from pruner.data.quarantine import Quarantine
    from pruner.data.root import RecordRoot
    from pruner.features import featurize_records

    start, cpu, programs, failed = time.perf_counter(), time.process_time(), 0, 0
    with Quarantine() as quarantine:
        for r in RecordRoot(root).read(quarantine, duplicates="keep"):
            batch = featurize_records(r.workload_key, r.fused, r.steps, OFFICIAL)
            programs += len(batch)
            failed += int((~batch.valid).sum())
    cpu = time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "stream_programs": programs,
        "stream_failed": failed,
        "stream_cpu_seconds": round(cpu, 1),
        "stream_wall_seconds": round(time.perf_counter() - start, 1),
        "stream_programs_per_cpu_second": round(programs / cpu),
        "stream_peak_rss_mb": round(peak / 1024),
    }


def main() -> None:
    """Measure, show, print the last line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--root", type=Path, required=True, help="data root with V100 records")
    options.add_argument("--ansor", type=Path, help="Python of the Ansor environment")
    options.add_argument("--tvm", type=Path, default=Path(sys.executable), help="one with TVM 0.27")
    options.add_argument("--stream", action="store_true", help="also stream all records")
    chosen = options.parse_args()
    os.environ.update(ONE_THREAD)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # inherited by the children
    result: dict[str, Any] = {"machine": platform.processor() or platform.machine()}
    if chosen.stream:  # first, while the peak is only its own
        result |= stream(chosen.root)
    result["cases"] = [measure(case, chosen) for case in CASES]
    for row in result["cases"]:
        print(json.dumps(row), file=sys.stderr)
    ratios = [row["ratio"] for row in result["cases"] if row["ratio"]]
    result["ratio_min"] = min(ratios, default=None)
    kept = Path(__file__).parent / "results" / "featurize.json"
    kept.parent.mkdir(exist_ok=True)
    write_json(kept, result, indent=1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
