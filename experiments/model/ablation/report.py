"""Report a diagnosis of fitted cells as a page and as rows.

It locates the error on validation tasks.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.model.ablation.cells import AblationCell
from experiments.model.ablation.diagnosis import (
    by_gap,
    by_group,
    by_heart,
    gap_rows,
    operator_of,
    rows_of,
    size_of,
    twins_of,
    worst,
)
from experiments.model.ablation.fits import SCORES, load_scores
from experiments.model.ablation.run import Ablation
from pruner.models.judging import metrics
from pruner.models.judging.metrics import ScoredTask
from pruner.models.programs.assemble import divide
from pruner.models.programs.program_table import ProgramTable
from pruner.study.markdown import markdown_table

Rows = list[dict[str, Any]]


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
    heart = _by_heart(ablation, tried)
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
    """Tables of a model; a task counts once for each seed."""
    tasks = [task for of_cell in found for task, _ in of_cell]
    has_rows = {task.name: there for of_cell in found for task, there in of_cell}
    by_name: Mapping[str, list[ScoredTask]] = _grouped(tasks)
    hardest = sorted(by_name, key=lambda name: metrics.top_k_task_mean(by_name[name], 1))
    return {
        "By operator": by_group(tasks, operator_of),
        "By platform": by_group(tasks, lambda task: task.name.partition("/")[0]),
        "Dataflow rows": by_group(tasks, rows_of(has_rows)),
        "Size of the pool": by_group(tasks, size_of),
        "Pairs by how far apart they are": gap_rows(by_gap(tasks)),
        "Worst tasks": [worst(by_name[name], 1)[0] for name in hardest[:10]],
    }


def _grouped(tasks: Sequence[ScoredTask]) -> Mapping[str, list[ScoredTask]]:
    found = defaultdict(list)
    for task in tasks:
        found[task.name].append(task)
    return found


def _by_heart(ablation: Ablation, cells: Sequence[AblationCell]) -> Rows:
    rows = []
    for model in dict.fromkeys(cell.model for cell in cells):
        own = [cell.done(ablation.folder) for cell in cells if cell.model == model]
        rows.append({"model": model, **by_heart([one for one in own if one is not None])})
    return rows


def _twins(ablation: Ablation, cells: Sequence[AblationCell]) -> Rows:
    """A row a setting: means over the validation tasks of all seeds."""
    rows = []
    model = cells[0].model
    first = [cell for cell in cells if cell.model == model]
    for name in dict.fromkeys(cell.setting.name for cell in first):
        own = [cell for cell in first if cell.setting.name == name]
        programs = ablation.read(ablation.source(own[0]))
        found = [twins_of(programs, part) for part in _valid_tasks(programs, own)]
        rows.append(
            {
                "setting": name,
                "tasks": len(found),
                "kinds of features a program": float(
                    np.mean([one.kinds / one.programs for one in found])
                ),
                "pairwise bound": float(
                    np.average(
                        [one.pairwise_bound for one in found],
                        weights=[one.programs for one in found],
                    )
                ),
            }
        )
    return rows


def _valid_tasks(programs: ProgramTable, cells: Sequence[AblationCell]) -> list[Any]:
    """Programs of every validation task of any seed, each once."""
    numbers = set()
    for cell in cells:
        split = cell.setting.divided(programs.keys, cell.seed)
        numbers |= set(programs.task[divide(programs, split)["valid"]].tolist())
    return [programs.programs_of([number]) for number in sorted(numbers)]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table; nothing for no rows."""
    if not rows:
        return ""
    names = list(rows[0])
    return markdown_table(names, [[_cell(row.get(name)) for name in names] for row in rows])


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "" if value is None else str(value)
