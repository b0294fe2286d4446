"""A frozen benchmark: check and rank submissions (scores of named programs).

``leaderboard/benchmark.yaml`` names the tracks: records, a frozen split, and hashes of both. Every
submission is a folder of ``leaderboard/entries`` with a form (``entry.yaml``) and a file of scores
for each track that it enters. Numbers of a ranking are computed here, from the scores and the
records; the form gives only what cannot be computed (training time, training records).
"""

import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from pruner.data.frozen import FrozenSplit
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.splits import make_split
from pruner.data.tasks import TaskRecords
from pruner.errors import DataError, PrunerError
from pruner.files import write_atomic, write_text
from pruner.models.judging.judge import random_report, ranking_metrics
from pruner.models.judging.metrics import ScoredTask
from pruner.study.markdown import markdown_table

SUBMISSION_FILE = "entry.yaml"
COLUMNS = ("platform", "task", "line", "score")
# Ranked by a metric that counts every task the same: one slow task can decide a ratio of sums.
MAX_SCORES_BYTES = 1 << 28  # of a submission's scores, unpacked: millions of programs have less
RANKED_BY = "top1_task_mean"
SHOWN = (RANKED_BY, "top1", "top5", "pairwise_accuracy")
REQUIRED = ("model", "authors", "source", "learned_from")  # of a form
IN_TABLE = ("model", "learned_from", "notes")  # texts of a form that the page shows
COSTS = ("fit_seconds", "scored_per_second", "memory_mb")
_FORGING = ("|", "<!--")  # in a cell of the page's table: another cell, or the mark of a table
ScoreTask = Callable[[TaskRecords], np.ndarray]  # NaN for a program that cannot be scored


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Test programs of some platforms: the frozen split's test side, and hashes.

    ``programs_sha256`` is of the test programs and their latencies: the records are the same.
    """

    name: str
    platforms: Sequence[str]
    split: str
    seed: int
    split_sha256: str
    programs_sha256: str
    records: str = ""

    @property
    def scores_file(self) -> str:
        """The file of an entry with its scores."""
        return f"scores-{self.name}.csv.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A submission's own description; ``fit_seconds`` on ``machine``, None: unknown.

    ``learned_from``: the records it was fitted to, in words; ``notes``: further facts for readers
    of its rank. ``scored_per_second`` with one thread, ``memory_mb`` of the process that scored.
    """

    model: str
    authors: str
    source: str
    learned_from: str
    machine: str = ""
    fit_seconds: float | None = None
    parameters: int | None = None
    scored_per_second: float | None = None
    memory_mb: float | None = None
    notes: str = ""


def load_tracks(path: Path) -> dict[str, Track]:
    """The tracks by name; raises DataError for an unreadable file or another frozen list."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        tracks = {name: Track(name=name, **given) for name, given in content["tracks"].items()}
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path}: not a benchmark ({error!r})") from error
    for track in tracks.values():
        frozen = FrozenSplit.load(track.split, track.seed)
        if frozen is None or frozen.sha256 != track.split_sha256:
            raise DataError(
                f"{path}: track {track.name}: the frozen list {track.split} (seed {track.seed}) is "
                "another one; restore datasets/splits"
            )
    return tracks


def programs_of(root: RecordRoot, track: Track) -> list[TaskRecords]:
    """Measured programs of the test tasks, each once; raises DataError without records."""
    with Quarantine() as quarantine:
        read = [r.select(r.valid) for r in root.read(quarantine, list(track.platforms))]
    tasks = {records.key: records for records in read if len(records)}
    split = make_split(track.split, tasks, track.seed)
    return [tasks[key] for key in sorted(split.test)]


def fingerprint(tasks: Sequence[TaskRecords]) -> str:
    """Hash of the programs and their latencies."""
    found = hashlib.sha256()
    for records in tasks:
        found.update(f"{records.key.platform} {records.key.task}\n".encode())
        found.update(np.ascontiguousarray(records.line, "<i8").tobytes())
        found.update(np.ascontiguousarray(records.latency_s, "<f8").tobytes())
    return found.hexdigest()


def checked_programs(root: RecordRoot, track: Track) -> list[TaskRecords]:
    """The test programs of a track; raises DataError for records of another content."""
    tasks = programs_of(root, track)
    if fingerprint(tasks) != track.programs_sha256:
        raise DataError(
            f"track {track.name}: the records in {root.path} are not those of the benchmark "
            f"({track.records or 'see leaderboard/README.md'})"
        )
    return tasks


def load_submission(entry: Path) -> Submission:
    """The form of an entry; raises PrunerError for missing, unknown or wrong fields."""
    path = entry / SUBMISSION_FILE
    known = [field.name for field in fields(Submission)]
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PrunerError(f"{path}: no such file; leaderboard/README.md has the form") from error
    except (ValueError, yaml.YAMLError) as error:
        raise PrunerError(f"{path}: not YAML ({_one_line(error)})") from error
    if not isinstance(content, dict):
        raise PrunerError(f"{path}: not a form; its fields: {', '.join(known)}")
    missing = [name for name in REQUIRED if name not in content]
    unknown = [_one_line(name) for name in content if name not in known]
    problems = [f"missing: {', '.join(missing)}"] if missing else []
    problems += [f"unknown: {', '.join(unknown)}; known: {', '.join(known)}"] if unknown else []
    if problems:
        raise PrunerError(f"{path}: {'; '.join(problems)}")
    stripped: dict[str, Any] = {
        k: v.strip() if isinstance(v, str) else v for k, v in content.items()
    }
    submission = Submission(**stripped)
    check_submission(entry, submission)
    return submission


def check_submission(entry: Path, submission: Submission) -> None:
    """Raise PrunerError for fields of the wrong kind, or text that forges the table."""
    path, given = entry / SUBMISSION_FILE, asdict(submission)
    for name in REQUIRED:
        if not isinstance(given[name], str) or not given[name].strip():
            raise PrunerError(f"{path}: {name} must not be empty")
    for name in ("machine", "notes"):
        if not isinstance(given[name], str):
            raise PrunerError(f"{path}: {name}={_one_line(given[name])}: a text, or ''")
    for name in ("parameters", *COSTS):
        value = given[name]
        if value is not None and not (isinstance(value, int | float) and 0 <= value < np.inf):
            raise PrunerError(f"{path}: {name}={_one_line(value)}: a number, 0 or more, or null")
    in_table = {"the folder's name": entry.name, **{name: given[name] for name in IN_TABLE}}
    for name, text in in_table.items():
        if len(text.splitlines()) > 1 or any(sign in text for sign in _FORGING):
            raise PrunerError(
                f"{path}: {name} stands in a table: one line without {' or '.join(_FORGING)}, "
                f"not {_one_line(text)}"
            )


def _one_line(problems: object) -> str:
    return " ".join(str(problems).split())[:120]


def save_submission(entry: Path, submission: Submission) -> None:
    """Write the form of an entry."""
    entry.mkdir(parents=True, exist_ok=True)
    write_text(entry / SUBMISSION_FILE, yaml.safe_dump(asdict(submission), sort_keys=False))


def write_scores(entry: Path, track: Track, tasks: Sequence[TaskRecords], score: ScoreTask) -> Path:
    """Score every test program and write the file of the track."""
    entry.mkdir(parents=True, exist_ok=True)
    columns = [(r.key.platform, r.key.task, r.line, score(r)) for r in tasks]
    parts = [pd.DataFrame(dict(zip(COLUMNS, values, strict=True))) for values in columns]
    path, packed = entry / track.scores_file, {"method": "gzip", "mtime": 0}
    with write_atomic(path) as partial:
        pd.concat(parts).to_csv(partial, index=False, float_format="%.7g", compression=packed)
    return path


def scored_tasks(path: Path, tasks: Sequence[TaskRecords]) -> Iterator[ScoredTask]:
    """The test tasks with scores, none last; raises PrunerError for a bad file."""
    given = _table(path)
    wanted = sum(map(len, tasks))
    if len(given) != wanted:
        raise PrunerError(f"{path}: {len(given):,} rows, the track has {wanted:,} test programs")
    by_task = dict(iter(given.groupby(["platform", "task"])))
    for records in tasks:
        name = (records.key.platform, records.key.task)
        rows = by_task.get(name)
        lines = np.sort(records.line)
        if rows is None or not np.array_equal(np.sort(rows.line.to_numpy()), lines):
            raise PrunerError(
                f"{path}: {'/'.join(name)}: its rows are not the {len(lines)} test programs of the "
                "track (pruner leaderboard entry=FOLDER checkpoint=RUN writes them)"
            )
        score = rows.set_index("line").score.loc[records.line].to_numpy(np.float64)
        score = np.where(np.isnan(score), -np.inf, score)
        yield ScoredTask(name="/".join(name), latency_s=records.latency_s, score=score)


def _table(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise PrunerError(f"{path}: no such file")
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            content = file.read(MAX_SCORES_BYTES + 1)
        if len(content) > MAX_SCORES_BYTES:
            raise ValueError(f"more than {MAX_SCORES_BYTES} bytes")
        # Only an empty field is missing: a score "nan" is a failed computation, and text.
        given = pd.read_csv(io.BytesIO(content), keep_default_na=False, na_values=[""])
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise PrunerError(f"{path}: not a table ({_one_line(error)})") from error
    if missing := [name for name in COLUMNS if name not in given]:
        raise PrunerError(f"{path}: no column {', '.join(missing)}; needed: {', '.join(COLUMNS)}")
    numeric = all(pd.api.types.is_numeric_dtype(given[name]) for name in ("line", "score"))
    if not numeric or np.isposinf(given.score).any():
        raise PrunerError(f"{path}: line and score must be numbers, a score finite or empty")
    return given


Row = dict[str, Any]


def judged(entry: Path, track: Track, tasks: Sequence[TaskRecords]) -> Row:
    """Check a submission and judge it: a row of the ranking."""
    submission = load_submission(entry)
    scored = list(scored_tasks(entry / track.scores_file, tasks))
    metrics = ranking_metrics(scored)
    return {
        "entry": entry.name,
        "model": submission.model,
        **{name: metrics[name] for name in SHOWN},
        **{name: getattr(submission, name) for name in (*COSTS, "learned_from", "notes")},
    }


def chance(tasks: Sequence[TaskRecords]) -> Row:
    """The row of a random ranking, exact in closed form where possible."""
    scored = [
        ScoredTask(name=str(number), latency_s=t.latency_s, score=np.zeros(len(t)))
        for number, t in enumerate(tasks)
    ]
    report = random_report(scored)
    numbers = {name: report[name] for name in SHOWN}
    return {"entry": "chance", "model": "a random order", **numbers}


def submissions(entries: Path, track: Track) -> list[Path]:
    """The folders that enter a track, by name."""
    return sorted(path.parent for path in entries.glob(f"*/{track.scores_file}"))


def ranking(entries: Path, track: Track, tasks: Sequence[TaskRecords]) -> list[Row]:
    """Every submission to a track, the best first, and chance; raises PrunerError if broken."""
    rows = [judged(entry, track, tasks) for entry in submissions(entries, track)] + [chance(tasks)]
    return sorted(rows, key=lambda row: -row[RANKED_BY])


def as_markdown(rows: Sequence[Mapping[str, Any]], first: int = 1) -> str:
    """The ranking as a table; its first row has the rank `first`."""
    heads = ("rank", "entry", "model", "Top-1 task mean", "Top-1", "Top-5", "pairwise", "fit (s)",
             "programs scored a second", "memory (MB)", "learned from", "notes")  # fmt: skip
    lines = []
    for number, row in enumerate(rows, first):
        numbers = [f"{row[name]:.3f}" for name in SHOWN]
        found = [row.get(name) for name in COSTS]
        costs = ["" if value is None else f"{value:,.0f}" for value in found]
        said = [row.get(name, "") for name in ("learned_from", "notes")]
        lines.append([number, row["entry"], row["model"], *numbers, *costs, *said])
    return markdown_table(heads, lines) + "\n"
