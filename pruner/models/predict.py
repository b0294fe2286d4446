"""Score recorded programs with a trained model, measured or not.

scores = predict(Path("outputs/train/RUN"), RecordRoot("data"), ["v100"])
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from pruner import features
from pruner.data.quarantine import Quarantine, of_all
from pruner.data.root import RecordRoot
from pruner.data.tasks import TaskRecords
from pruner.errors import UnsupportedProgram
from pruner.models.analyzer.columns import draft_columns
from pruner.models.forecast import boxed_forecast
from pruner.models.ranker import Ranker
from pruner.models.registry import Trainable
from pruner.models.training.fit import ranker_of
from pruner.paths import conf_folder
from pruner.program.device import Device, load_device
from pruner.program.replay import Definitions, definitions_of


def predict(
    checkpoint: Path,
    root: RecordRoot,
    platforms: Sequence[str] | None = None,
    *,
    own: Sequence[type[Trainable]] = (),
    seconds: bool = False,
) -> pd.DataFrame:
    """Score every readable record line with a checkpoint, task after task.

    Columns: `platform`, `task`, `line` (0-based, of the task's file), `score` (higher is predicted
    faster; scores of different tasks are not comparable), `rank` (1 is predicted fastest of its
    task), `latency_s` (as measured; empty without a measurement). A program without features has
    neither score nor rank. With relative features (the default of training) a score depends on the
    other programs of the task in the records.

    With `seconds` also `low_s`, `predicted_s` and `high_s`: the latency that
    :mod:`pruner.models.forecast` expects, which does not depend on the checkpoint. They are empty
    for a platform without a description.

    Raises:
        DataError: the checkpoint does not fit, or a platform has no records.
        MissingExtra: `seconds` without lightgbm.
    """
    ranker, info = ranker_of(checkpoint, own)
    with Quarantine() as quarantine:
        # A row for every line, repeated programs included.
        records = root.read(quarantine, platforms, duplicates="keep", measured=False)
        known = definitions_of(root.path)
        parts = scored_tasks(ranker, records, info.dataflow, known, quarantine, seconds=seconds)
        return pd.concat(list(parts), ignore_index=True)


def scored_tasks(
    ranker: Ranker,
    records: Iterable[TaskRecords],
    dataflow: str,
    tasks: Definitions | None = None,
    quarantine: Quarantine | None = None,
    *,
    seconds: bool = False,
) -> Iterator[pd.DataFrame]:
    """Yield the rows of `predict`, one frame a task.

    `dataflow` is the kind that the model was fitted on. `quarantine` receives the programs without
    features; where a complete task has none, only its first program.
    """
    for task in records:
        device = _described(task.key.platform) if seconds else None
        report = quarantine or Quarantine()
        # columns that the ranker does not read
        only_seconds = device is not None and not ranker.reads_draft
        draft = only_seconds or ranker.reads_draft
        kept = Quarantine() if only_seconds else report
        found = columns = _featurized(task, dataflow, draft, tasks, kept)
        if only_seconds and (columns is None or columns.failures):
            # A program without the analyzer's columns may have features, and so a score.
            found = _featurized(task, dataflow, False, tasks, report)
        rows = _rows(ranker, task, found)
        if seconds:
            low_to_high = np.full((len(task), 3), np.nan)
            if columns is not None and device is not None and columns.extra is not None:
                valid = columns.valid
                low_to_high[valid] = boxed_forecast(device.kind)(columns.extra[valid], device)
            rows[["low_s", "predicted_s", "high_s"]] = low_to_high
        yield rows


@cache
def _described(platform: str) -> Device | None:
    path = conf_folder() / "platform" / f"{platform}.yaml"
    return load_device(path) if path.is_file() else None


def _featurized(
    records: TaskRecords,
    dataflow: str,
    draft: bool,
    tasks: Definitions | None,
    quarantine: Quarantine,
) -> features.ProgramFeatures | None:
    try:
        found = features.featurize_records(
            records.workload_key,
            records.fused,
            records.steps,
            features.FeatureSpec(
                dataflow=dataflow,  # type: ignore[arg-type]
                extra=draft_columns(records.key.platform) if draft else None,
            ),
            tasks=tasks,
        )
    except UnsupportedProgram as error:
        why = of_all(error.reason, len(records))
        quarantine.not_replayed(file=records.file, line=int(records.line[0]), why=why)
        return None
    for row, why in sorted(found.failures.items()):
        quarantine.not_replayed(file=records.file, line=int(records.line[row]), why=why)
    return found


def _rows(
    ranker: Ranker, records: TaskRecords, found: features.ProgramFeatures | None
) -> pd.DataFrame:
    score = np.full(len(records), np.nan)
    if found is not None:
        # A ranker gives minus infinity to invalid features, but a table must not rank them last: no
        # score.
        score[found.valid] = ranker.score(found, records.key)[found.valid]
    return pd.DataFrame(
        {
            "platform": records.key.platform,
            "task": records.key.task,
            "line": records.line,
            "score": score,
            "rank": pd.Series(score).rank(ascending=False, method="first").astype("Int64"),
            "latency_s": np.where(records.valid, records.latency_s, np.nan),
        }
    )
