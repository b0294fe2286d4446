"""Make a checkpoint of `checkpoints/` again, and its card's numbers.

    python -m experiments.checkpoints.run name=cpu                  from the bundled records
    python -m experiments.checkpoints.run name=gpu data.root=DIR    from public GPU logs
    python -m experiments.checkpoints.run name=gpu data.root=DIR run=RUN     of a finished run

The script trains by `RECIPES` and stores the checkpoint in float16. It tests the checkpoint on the
held-out workloads of every platform, together with the float32 weights, the analyzer alone, chance
and, if the records have two timings, a second timing. A fit that left a platform out is tested on
this platform. Rows of the same checkpoint in results.csv are replaced; SHA256SUMS is written anew.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.model.ablation.fits import (
    ANALYZER,
    CEILING,
    CHANCE,
    AnalyzerRanker,
    ceiling_of,
    chance_of,
    judged_side,
    numbers_of,
)
from pruner import features
from pruner.cli.shared.door import command_config
from pruner.cli.shared.output import as_table, say
from pruner.cli.shared.script import Data, run_script
from pruner.cli.train import train
from pruner.data.root import RecordRoot
from pruner.data.splits import make_split
from pruner.errors import PrunerError, check_chosen
from pruner.files import load_metrics, merged_table, write_checksums, write_table
from pruner.models.checkpoint.checkpoint import load_checkpoint, save_checkpoint
from pruner.models.programs.assemble import divide
from pruner.models.programs.dataset import load_programs
from pruner.models.programs.program_table import ProgramTable
from pruner.models.programs.reading import ReadSpec
from pruner.models.ranker import RandomRanker, Ranker
from pruner.paths import checkpoints_folder, datasets_folder

HERE = Path(__file__).resolve().parent
RESULTS = checkpoints_folder() / "results.csv"
RECIPES = {
    "cpu": ("data.platform=all", "split=bundled", "model=pacm_residual", "seeds=[0,1,2]"),
    "gpu": (
        "platform=orin", "leave_out=all", "split=by_task", "model=pacm_draft",
        "batches.per_task=96",
    ),
}  # fmt: skip
"""Options of train.py. No log is of platform=orin, so all platforms teach, and fits that leave one
out judge; of several seeds the one that is best on the validation tasks counts."""

SPLITS = {"cpu": "bundled", "gpu": "by_task"}
BOX, AS_TRAINED = "float16", "float32"  # judges of the table, beside the references


@dataclass(kw_only=True)
class Options:
    """Options of the script; `run`: a finished run of train.py, null: train now."""

    name: str
    data: Data = field(default_factory=lambda: Data(root=str(datasets_folder() / "bundled")))
    run: str | None = None
    cache: str = "outputs/cache"


def run(options: Options) -> dict[str, Any]:
    """Train, store, judge, write."""
    check_chosen("name", [options.name], RECIPES)
    metrics = load_metrics(Path(options.run)) if options.run else _trained(options)
    if metrics is None:
        raise PrunerError(f"run={options.run}: not a finished run of train.py")
    trained, folder = Path(metrics["checkpoint"]), Path(metrics["run_dir"])
    box = checkpoints_folder() / f"{options.name}.safetensors"
    store(trained, box)
    root = RecordRoot(Path(options.data.root))
    spec = ReadSpec(draft=True, cache=Path(options.cache))
    programs = load_programs(root, root.platforms, spec).store
    rows = judged(options.name, programs, {AS_TRAINED: trained, BOX: box}, None)
    for path in sorted(folder.glob("without-*/best.safetensors")):
        left = path.parent.name.removeprefix("without-")
        rows += judged(options.name, programs, {AS_TRAINED: path}, left)
    write_table(RESULTS, merged_table(RESULTS, rows, ("checkpoint",)), ".4f")
    write_checksums(box.parent, box.parent.glob("*.safetensors"))
    say(as_table(rows))
    return {"checkpoint": str(box), "bytes": box.stat().st_size, "results": str(RESULTS)}


def _trained(options: Options) -> dict[str, Any]:
    words = [*RECIPES[options.name], f"data.root={options.data.root}"]
    with command_config("train", words) as config:
        return train(config)


def store(trained: Path, box: Path) -> None:
    """Write the bundled file: float16 weights, without traces of the training machine."""
    ranker, info = load_checkpoint(trained, feature_version=features.FEATURE_SET_VERSION)
    about = {name: info.config[name] for name in ("seed", "split", "batches", "optimizer")}
    save_checkpoint(box, ranker, replace(info, config=about), half=True)


def judged(
    name: str, programs: ProgramTable, files: dict[str, Path], left_out: str | None
) -> list[dict[str, Any]]:
    """Rows of every judge, on held-out workloads of the judged platforms."""
    if left_out is None:
        split = make_split(SPLITS[name], programs.keys, 0)
    else:
        split = make_split("by_platform", programs.keys, 0, held_out=[left_out])
    test = divide(programs, split)["test"]
    platforms = sorted({key.platform for key in split.test})
    rankers: dict[str, Ranker] = {word: load_checkpoint(path)[0] for word, path in files.items()}
    rankers |= {ANALYZER: AnalyzerRanker(), CHANCE: RandomRanker()}
    rows = []
    for word, ranker in rankers.items():
        for platform, tasks in judged_side(ranker, programs, test, platforms).items():
            about = {"checkpoint": name, "platform": platform, "learned": platform != left_out}
            numbers = chance_of(tasks) if word == CHANCE else numbers_of(tasks)
            rows.append({**about, "judge": word, **numbers})
            ceiling = ceiling_of(tasks) if word == CHANCE else None
            if ceiling is not None:
                rows.append({**about, "judge": CEILING, **ceiling})
    return rows


if __name__ == "__main__":
    run_script(Options, run, __doc__)
