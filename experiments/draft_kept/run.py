"""Evaluate the draft's shortlists on recorded pools and their best tenths.

    python -m experiments.draft_kept.run data.root=DIR [platforms=[k80,v100,mi50,a100]]

The reference is chance. The forms are the hardware form with the default rates, and the hardware
form with a term that is off by default. The selections are: by score alone; apart from each other;
partly at random among nearly equal scores. The script writes results.csv into out=, by default
here; rows of a platform replace its earlier rows.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.draft_kept.kept import EVERY_FOLD, Keeping, kept_rows, pools_of
from pruner.cli.shared.output import as_table, say
from pruner.cli.shared.progress import track
from pruner.cli.shared.script import Data, run_script
from pruner.data.root import RecordRoot
from pruner.files import merged_table, write_table
from pruner.paths import conf_folder
from pruner.progress import Progress

HERE = Path(__file__).resolve().parent
FORMS: dict[str, dict[str, float]] = {
    "hardware": {},
    "whole_waves": {"whole_waves": 1.0},
}
KEEPINGS = (
    Keeping(name="score"),
    Keeping(name="apart_10", apart=0.1),
    Keeping(name="apart_50", apart=0.5),
    Keeping(name="noise_10", noise=0.1),
    Keeping(name="noise_25", noise=0.25),
    Keeping(name="noise_50", noise=0.5),
    Keeping(name="apart_50_noise_25", apart=0.5, noise=0.25),
)
KEY = ("platform", "pools", "fold", "form", "keeping", "size")


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above."""

    data: Data = field(default_factory=Data)
    platforms: list[str] = field(default_factory=lambda: ["k80", "v100", "mi50", "a100"])
    seed: int = 0
    out: str = str(HERE)


def run(options: Options) -> dict[str, Any]:
    """Judge every platform; returns the ways' counts of reached goals."""
    root, path = RecordRoot(Path(options.data.root)), Path(options.out) / "results.csv"
    rows: list[dict[str, Any]] = []
    for platform in options.platforms:
        pools = pools_of(
            root, platform, FORMS, conf=conf_folder(), progress=Progress(log=say, track=track)
        )
        rows += kept_rows(platform, pools, KEEPINGS, seed=options.seed)
        write_table(path, merged_table(path, rows, KEY), ".6f")
        say(as_table([row for row in rows if row["platform"] == platform and _shown(row)]))
    return {"results": str(path), "meets": meets(rows)}


def _shown(row: dict[str, Any]) -> bool:
    return row["fold"] == EVERY_FOLD and row["form"] == "hardware"


def meets(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Count pools and sizes that reach the goal, by form and way.

    The goal is a regret of at most a third of chance's, on best tenths of at most chance's. Task
    means of both folds together.
    """
    goals = {"all": 1 / 3, "best tenth": 1.0}
    found: dict[str, list[bool]] = {}
    for row in rows:
        if row["fold"] == EVERY_FOLD:
            met = row["task_mean_regret_ratio"] <= goals[row["pools"]]
            found.setdefault(f"{row['form']}/{row['keeping']}", []).append(met)
    return {name: f"{sum(each)} of {len(each)}" for name, each in found.items()}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
