"""Which task is bad: the rows of ``tasks.csv`` as a short table on stderr."""

from pathlib import Path

from pruner.cli.output import say
from pruner.files import read_table

FEW = 5  # tasks below which the numbers say little
_SHOWN = 8
_NAME = 44


def show_tasks(path: Path) -> None:
    """The tasks on which the ranking is worst, and a warning where there are few."""
    rows = sorted(read_table(path), key=lambda row: float(row["top1"]))
    if len(rows) < FEW:
        plural = "" if len(rows) == 1 else "s"
        say(
            f"warning: judged on {len(rows)} task{plural} only; these numbers say little about "
            "others (add records, or another split.seed)"
        )
    worst = f"the {_SHOWN} worst of {len(rows)} tasks" if len(rows) > _SHOWN else "tasks"
    say(f"{worst:{_NAME}s} programs   top1 random   top5  pairs  best ms chosen ms")
    for row in rows[:_SHOWN]:
        task = row["task"] if len(row["task"]) <= _NAME else "..." + row["task"][3 - _NAME :]
        say(
            f"{task:{_NAME}s} {row['num_programs']:>8s} {float(row['top1']):6.3f} "
            f"{float(row['random_top1']):6.3f} {float(row['top5']):6.3f} "
            f"{float(row['pairwise_accuracy']):6.3f} {float(row['best_latency_s']) * 1e3:8.3g} "
            f"{float(row['chosen_latency_s']) * 1e3:9.3g}"
        )
    say(f"every task: {path}")
