"""Time Ansor's own feature extraction, in the environment of TVM 0.19.

Reads ``{"record": ..., "fused": [...]}`` lines on stdin, one operator. After every program one JSON
line goes to stdout, in CPU seconds: ``load_s`` (parsing the record), ``extract_s`` (schedule,
lowering, features), and ``rows``. Extraction aborts the process on some programs; the caller starts
it again behind them.
"""

import importlib
import json
import os
import sys
import time
from typing import Any

from pruner.program.dag.operators import te_tensors

tvm: Any = importlib.import_module("tvm")
ansor: Any = importlib.import_module("tvm.auto_scheduler")
te, topi = importlib.import_module("tvm.te"), importlib.import_module("tvm.topi")
features: Any = importlib.import_module("tvm.auto_scheduler.feature")

HOST = "llvm"  # the wheel has no CUDA; the header of a record is parsed with this target


def make_task(record: dict[str, Any], fused: list[str], target: str) -> Any:
    """Ansor's search task of an operator, with the record's hardware parameters."""
    workload_key, _, hardware = record["i"][0][:3]
    return ansor.SearchTask(
        compute_dag=ansor.ComputeDAG(te_tensors(te, topi, workload_key, fused)),
        workload_key=workload_key,
        target=tvm.target.Target(target),
        hardware_params=ansor.HardwareParams(*hardware),
        layout_rewrite_option=ansor.LayoutRewriteOption.NO_REWRITE,
    )


def main() -> None:
    """Time every program of stdin."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task: Any = None
    for line in sys.stdin:
        content = json.loads(line)
        record = content["record"]
        if task is None:
            task = make_task(record, content["fused"], sys.argv[1])
        record["i"][0][1], record["i"][0][3] = HOST, ""
        text = json.dumps(record)
        start = time.process_time()
        pair, _ = ansor.measure_record.load_record_from_string(text)
        loaded = time.process_time()
        (rows,) = features.get_per_store_features_from_states([pair.state], task)
        done = time.process_time()
        times = {"load_s": loaded - start, "extract_s": done - loaded, "rows": len(rows)}
        times["empty"] = not rows.any()
        print(json.dumps(times), file=out, flush=True)


if __name__ == "__main__":
    main()
