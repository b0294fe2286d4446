"""One row per record, as an Arrow table or a pandas frame, for questions nobody foresaw."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import orjson
import pandas as pd
import pyarrow as pa

from pruner.data.labels import relative_noise
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.tasks import TaskRecords

_NAME = pa.dictionary(pa.int32(), pa.string())

# Column, type, meaning.
COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("platform", _NAME, "folder the record came from"),
    ("task", _NAME, "record file without suffixes"),
    ("op", _NAME, "operator without _layer; 'subgraph' for TenSet's hashed keys"),
    ("args", _NAME, "arguments of the workload key, as JSON"),
    ("fused", _NAME, "operators fused behind it, joined by _"),
    ("identity", _NAME, "what splits compare (Workload.identity)"),
    ("target", _NAME, "target text as logged"),
    ("line", pa.int64(), "0-based line of the file"),
    ("valid", pa.bool_(), "measured without error"),
    ("latency_s", pa.float64(), "mean of the timings in seconds; null where it failed"),
    ("label", pa.float64(), "best latency of the task / latency; 0 where it failed"),
    ("num_repeats", pa.int32(), "timings of this record"),
    ("relative_noise", pa.float64(), "standard deviation / mean of the timings; null below two"),
    ("error_no", pa.int64(), "0, or why the tuner could not measure it"),
    ("all_cost_s", pa.float64(), "what building and measuring cost the tuner, in seconds"),
    ("timestamp_s", pa.int64(), "when, in Unix seconds"),
    ("origin", _NAME, "how the schedule was found (random, evolved); null where unknown"),
)
SCHEMA = pa.schema([(name, kind) for name, kind, _ in COLUMNS])
STEPS_FIELD = pa.field("steps", pa.string())


def task_table(records: TaskRecords, *, with_steps: bool = False) -> pa.Table:
    """The rows of one task; `with_steps` adds the steps as JSON text."""
    num_rows = len(records)
    workload = records.key.workload
    constants = {
        "platform": records.key.platform,
        "task": records.key.task,
        "op": workload.short_op,
        "args": orjson.dumps(workload.args).decode(),
        "fused": "_".join(records.fused),
        "identity": workload.identity,
        "target": records.target,
    }
    valid = records.valid
    noise = relative_noise(records.costs_s)
    columns = {
        "line": records.line,
        "valid": valid,
        "latency_s": pa.array(records.latency_s, mask=~valid),
        "label": records.labels,
        "num_repeats": [len(costs) for costs in records.costs_s],
        "relative_noise": pa.array(noise, mask=~(valid & (noise == noise))),
        "error_no": records.error_no,
        "all_cost_s": records.all_cost_s,
        "timestamp_s": records.timestamp,
        "origin": records.origin,
    }
    arrays = []
    for name, kind, _ in COLUMNS:
        values = [constants[name]] * num_rows if name in constants else columns[name]
        arrays.append(pa.array(values, type=kind) if not isinstance(values, pa.Array) else values)
    table = pa.Table.from_arrays(arrays, schema=SCHEMA)
    if with_steps:
        texts = [orjson.dumps(steps).decode() for steps in records.steps]
        table = table.append_column(STEPS_FIELD, pa.array(texts, type=STEPS_FIELD.type))
    return table


def record_table(
    source: RecordRoot | Path | str,
    quarantine: Quarantine,
    platforms: str | Sequence[str] | None = None,
    *,
    with_steps: bool = False,
) -> pa.Table:
    """All records of the given platforms (all when None) as one Arrow table.

    Raises:
        DataError: as `RecordRoot` and `RecordRoot.read`.
    """
    root = source if isinstance(source, RecordRoot) else RecordRoot(source)
    return join(root.read(quarantine, platforms), with_steps=with_steps)


def join(tasks: Iterable[TaskRecords], *, with_steps: bool = False) -> pa.Table:
    """One table over several tasks."""
    tables = [task_table(records, with_steps=with_steps) for records in tasks]
    empty = pa.schema([*SCHEMA, STEPS_FIELD]) if with_steps else SCHEMA
    if not tables:
        return empty.empty_table()
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def record_frame(
    source: RecordRoot | Path | str,
    quarantine: Quarantine,
    platforms: str | Sequence[str] | None = None,
    *,
    with_steps: bool = False,
) -> pd.DataFrame:
    """`record_table` as a pandas frame; names become categories."""
    return record_table(source, quarantine, platforms, with_steps=with_steps).to_pandas()
