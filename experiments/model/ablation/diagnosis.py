"""Locate the error of a ranking: tasks, pairs of programs, features.

Every table divides one number, so that its parts add up: the task-mean Top-1 regret ``mean(1 - best
/ chosen)`` over tasks, and the pairs ordered wrongly, in which every pair counts alike (pairwise
accuracy weighs tasks by their programs instead). A task that several models scored, such as those
of several seeds, is several tasks.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from experiments.model.ablation.cells import AblationCell
from experiments.model.ablation.fits import SCORES, load_scores
from experiments.model.ablation.run import Ablation
from pruner.models.judging import metrics
from pruner.models.judging.metrics import ScoredTask
from pruner.models.programs.assemble import divide
from pruner.models.programs.program_table import ProgramTable
from pruner.study.markdown import markdown_table

Rows = list[dict[str, Any]]
GAPS = (0.02, 0.05, 0.1, 0.25, 1.0)  # relative differences of latency: edges of the ranges
_BLOCK = 1024  # rows of the pair matrix held at once
_SMALL = 200  # programs: tasks below are told apart


def by_gap(
    tasks: Sequence[ScoredTask], edges: Sequence[float] = GAPS
) -> tuple[Float[np.ndarray, " range"], Float[np.ndarray, " range"]]:
    """Pairs of all tasks by latency difference, and how many are ordered wrongly.

    The difference is relative to the faster program; equal latencies form no pair. A tie of scores
    counts half.
    """
    bounds = np.array([0.0, *edges, np.inf])
    pairs, wrong = np.zeros(len(bounds) - 1), np.zeros(len(bounds) - 1)
    for task in tasks:
        own, own_wrong = _gaps(task, bounds)
        pairs += own
        wrong += own_wrong
    return pairs, wrong


def _gaps(
    task: ScoredTask, bounds: Float[np.ndarray, " edge"]
) -> tuple[Float[np.ndarray, " range"], Float[np.ndarray, " range"]]:
    order = np.argsort(task.latency_s, kind="stable")
    latency_s, score = task.latency_s[order], task.score[order]
    size, num = len(bounds) - 1, task.num_programs
    pairs, wrong = np.zeros(size), np.zeros(size)
    for start in range(0, num, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, num))
        later = np.arange(num)[None, :] > rows[:, None]
        gap = latency_s[None, :] / latency_s[rows, None] - 1.0
        here = later & (gap > 0)
        place = np.clip(np.searchsorted(bounds, gap[here], side="left") - 1, 0, size - 1)
        ours, theirs = np.broadcast_arrays(score[rows, None], score[None, :])
        error = np.where(theirs[here] > ours[here], 1.0, 0.5 * (theirs[here] == ours[here]))
        pairs += np.bincount(place, minlength=size)
        wrong += np.bincount(place, weights=error, minlength=size)
    return pairs, wrong


def gap_rows(tasks: Sequence[ScoredTask], edges: Sequence[float] = GAPS) -> Rows:
    """A row a range: shares of pairs and errors, and accuracy (1 without pairs)."""
    pairs, wrong = by_gap(tasks, edges)
    ranges = zip((0.0, *edges), (*edges, np.inf), pairs.tolist(), wrong.tolist(), strict=True)
    return [
        {
            "latencies differ by": f"{low:.0%} to {high:.0%}"
            if np.isfinite(high)
            else f"more than {low:.0%}",
            "share of pairs": count / max(1.0, float(pairs.sum())),
            "share of errors": errors / max(1e-12, float(wrong.sum())),
            "right": 1.0 - errors / count if count else 1.0,
        }
        for low, high, count, errors in ranges
    ]


def by_group(
    tasks: Sequence[ScoredTask], group: Callable[[ScoredTask], str]
) -> list[dict[str, Any]]:
    """A row a group of tasks: shares of tasks and regret, metrics.

    Regret is that of Top-1; metrics are Top-1 and pairwise accuracy. `chance_top1` is the result of
    a random first choice there.
    """
    total = max(1e-12, _regret(tasks))
    rows = []
    for name in sorted({group(task) for task in tasks}):
        own = [task for task in tasks if group(task) == name]
        rows.append(
            {
                "group": name,
                "tasks": len(own),
                "programs": sum(task.num_programs for task in own),
                "share of regret": _regret(own) / total,
                "top1_task_mean": metrics.top_k_task_mean(own, 1),
                "chance_top1": float(
                    np.mean([np.mean(task.best_s / task.latency_s) for task in own])
                ),
                "pairwise_accuracy": metrics.pairwise_accuracy(own),
            }
        )
    return sorted(rows, key=lambda row: -row["share of regret"])


def _regret(tasks: Sequence[ScoredTask]) -> float:
    return len(tasks) * (1.0 - metrics.top_k_task_mean(tasks, 1))


def operator_of(task: ScoredTask) -> str:
    """The operator, from the name ``platform/operator_arguments``."""
    words = task.name.partition("/")[2].split("_")
    return "_".join(takewhile(lambda word: not word.isdigit(), words)) or task.name


def size_of(task: ScoredTask) -> str:
    """Small pools apart."""
    small = task.num_programs < _SMALL
    return f"below {_SMALL} programs" if small else f"{_SMALL} programs or more"


def rows_of(has_rows: Mapping[str, bool]) -> Callable[[ScoredTask], str]:
    """Groups by whether the programs of a task have dataflow rows."""
    return lambda task: "with dataflow rows" if has_rows[task.name] else "without"


def worst(tasks: Sequence[ScoredTask], num: int = 10) -> list[dict[str, Any]]:
    """The tasks with most Top-1 regret, and the measured rank of the choice."""
    rows: list[dict[str, Any]] = []
    for task in tasks:
        chosen = int(metrics.ranking(task.score)[0])
        chosen_s = float(task.latency_s[chosen])
        rows.append(
            {
                "task": task.name,
                "programs": task.num_programs,
                "top1": task.best_s / chosen_s,
                "top5": metrics.top_k_task_mean([task], 5),
                "faster programs": int((task.latency_s < chosen_s).sum()),
                "pairwise_accuracy": metrics.pairwise_accuracy([task]),
            }
        )
    return sorted(rows, key=lambda row: row["top1"])[:num]


def twins_of(programs: ProgramTable, index: Int[Tensor, " program"]) -> tuple[int, int, float]:
    """Programs of a task, kinds of features among these, and the bound of their pairs.

    A model that is right wherever features differ, and guesses among equal features, orders that
    share of the pairs of different latency rightly.
    """

    def content(program: int) -> bytes:
        """All that a model sees of a program."""
        start, end = programs.row_start[program : program + 2].tolist()
        parts = [programs.rows[start:end], programs.dataflow[program]]
        if programs.draft is not None:
            parts.append(programs.draft[program])
        return b"".join(part.numpy().tobytes() for part in parts)

    kind: dict[bytes, int] = {}
    kinds = np.array([kind.setdefault(content(int(n)), len(kind)) for n in index])
    latency_s = programs.latency_s[index].numpy()
    pairs, same = _ordered_pairs(latency_s), 0
    for number in range(len(kind)):
        same += _ordered_pairs(latency_s[kinds == number])
    return len(kinds), len(kind), 1.0 - 0.5 * same / pairs if pairs else 1.0


def _ordered_pairs(latency_s: Float[np.ndarray, " program"]) -> int:
    _, counts = np.unique(latency_s, return_counts=True)
    return int(len(latency_s) * (len(latency_s) - 1) / 2 - (counts * (counts - 1) / 2).sum())


def by_heart(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Metrics on training tasks less metrics on validation tasks.

    The difference measures how much was learned by heart. `found` are the metrics of cells:
    ``train`` and ``valid``, platform to numbers.
    """
    sides = [
        (one["train"][platform], one["valid"][platform])
        for one in found
        for platform in one["valid"]
        if platform in one["train"]
    ]
    return {
        name: float(np.mean([train[name] - valid[name] for train, valid in sides]))
        for name in ("top1_task_mean", "pairwise_accuracy")
    }


def report(
    ablation: Ablation, cells: Sequence[AblationCell], tried: Sequence[AblationCell]
) -> tuple[str, Rows]:
    """Page and rows of each model's tasks, over platforms and seeds.

    `tried` are the cells of all changes, to compare how much each learned by heart. A row has the
    columns `table`, `model` and those of its table.
    """
    rows: Rows = []
    text = ["# Where the error lies", "", _ABOUT, ""]
    for model in dict.fromkeys(cell.model for cell in cells):
        own = [cell for cell in cells if cell.model == model]
        tables = _tables([load_scores(ablation.folder / cell.name / SCORES) for cell in own])
        text += [f"## {model}", ""]
        for title, found in tables.items():
            text += [f"{title}:", "", markdown(found), ""]
            rows += [{"table": title, "model": model, **row} for row in found]
    heart: Rows = []
    for model in dict.fromkeys(cell.model for cell in tried):
        own_metrics = [cell.done(ablation.folder) for cell in tried if cell.model == model]
        heart.append({"model": model, **by_heart([one for one in own_metrics if one is not None])})
    text += ["## Learned by heart", "", _HEART, "", markdown(heart), ""]
    rows += [{"table": "learned by heart", **row} for row in heart]
    told = _twins(ablation, cells)
    text += ["## What the features tell apart", "", _TWINS, "", markdown(told), ""]
    rows += [{"table": "twins", **row} for row in told]
    return "\n".join(text), rows


_ABOUT = (
    "Validation tasks of every platform and seed, models trained per platform. Shares of regret "
    "are of the task-mean Top-1 regret, shares of errors of the pairs ordered wrongly."
)
_HEART = (
    "Numbers on training tasks less those on validation tasks, mean over settings, platforms and "
    "seeds: the larger, the more was learned by heart."
)
_TWINS = (
    "Programs of a task with the same features; a model that is right wherever features differ "
    "orders the bound of the pairs rightly. Noise of single timings comes on top: records that "
    "were timed once do not tell it."
)


def _tables(found: Sequence[Sequence[tuple[ScoredTask, bool]]]) -> dict[str, Rows]:
    tasks = [task for of_cell in found for task, _ in of_cell]
    has_rows = {task.name: there for of_cell in found for task, there in of_cell}
    by_name: dict[str, list[ScoredTask]] = {}
    for task in tasks:
        by_name.setdefault(task.name, []).append(task)
    hardest = sorted(by_name, key=lambda name: metrics.top_k_task_mean(by_name[name], 1))
    return {
        "By operator": by_group(tasks, operator_of),
        "By platform": by_group(tasks, lambda task: task.name.partition("/")[0]),
        "Dataflow rows": by_group(tasks, rows_of(has_rows)),
        "Size of the pool": by_group(tasks, size_of),
        "Pairs by how far apart they are": gap_rows(tasks),
        "Worst tasks": [worst(by_name[name], 1)[0] for name in hardest[:10]],
    }


def _twins(ablation: Ablation, cells: Sequence[AblationCell]) -> Rows:
    """A row a setting: means over the validation tasks of all seeds."""
    rows = []
    model = cells[0].model
    first = [cell for cell in cells if cell.model == model]
    for name in dict.fromkeys(cell.setting.name for cell in first):
        own = [cell for cell in first if cell.setting.name == name]
        programs = ablation.read(ablation.source(own[0]))
        numbers = set[int]()  # of the validation tasks of any seed
        for cell in own:
            split = cell.setting.divided(programs.keys, cell.seed)
            numbers |= set(programs.task[divide(programs, split)["valid"]].tolist())
        found = [twins_of(programs, programs.programs_of([number])) for number in sorted(numbers)]
        if not found:
            continue
        number, kinds, bounds = (np.array(values) for values in zip(*found, strict=True))
        each = float(np.mean(kinds / number))
        row = {"setting": name, "tasks": len(found), "kinds of features a program": each}
        rows.append(row | {"pairwise bound": float(np.average(bounds, weights=number))})
    return rows


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table; nothing for no rows."""
    if not rows:
        return ""

    def cell(value: Any) -> str:
        return f"{value:.3f}" if isinstance(value, float) else "" if value is None else str(value)

    names = list(rows[0])
    return markdown_table(names, [[cell(row.get(name)) for name in names] for row in rows])
