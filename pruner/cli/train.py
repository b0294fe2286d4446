"""``python train.py``: fit a cost model on measured records."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from pruner.cli.dataset import chosen_platforms, load_dataset, record_root
from pruner.cli.door import run_door
from pruner.cli.fit import Part, check_fit, run_part
from pruner.cli.options import choice, plain
from pruner.cli.output import say
from pruner.cli.runs import new_run_folder, resumed_config, save_config
from pruner.data.root import RecordRoot
from pruner.data.splits import Split, make_split
from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError
from pruner.files import METRICS_FILE, load_metrics, save_metrics
from pruner.models.programs.dataset import Dataset

AVERAGED = (
    "top1",
    "top5",
    "top1_task_mean",
    "top5_task_mean",
    "pairwise_accuracy",
    "peak_score_1",
    "peak_score_5",
    "ndcg",
    "top1_regret",
    "top5_regret",
)


def train(config: DictConfig) -> dict[str, Any]:
    """Run the command; returns the object of the last line."""
    start = time.perf_counter()
    earlier = Path(config.resume) if config.resume is not None else None
    if earlier is not None:
        config = resumed_config(earlier, config)
    check_fit(config)
    root = record_root(config.data)
    own = chosen_platforms(config.data, config.platform.name, root)
    if not own:
        _announce_transfer(config.platform.name, root)
    folder = _open_run(config, earlier)
    with _log_to(folder):
        dataset = load_dataset(
            root,
            own or root.platforms,
            dataflow=config.features.dataflow,
            duplicates=config.data.duplicates,
            folder=folder,
            cache=config.data.get("cache"),
        )
        parts = plan(config, folder, dataset.store.keys, transfer=not own)
        results = {part.name: run_part(config, dataset.store, part) for part in parts}
    result = summarise(folder, parts, results, dataset, transfer=not own)
    result["seconds"] = round(time.perf_counter() - start, 2)
    if result["finished"]:
        save_metrics(folder, result)
    return result


def _open_run(config: DictConfig, earlier: Path | None) -> Path:
    if earlier is not None:
        _reopen(earlier, config)
        return earlier
    label = f"{config.platform.name}-{choice('model')}"
    folder = new_run_folder(Path(config.outputs), "train", config.run_id, label)
    save_config(folder, config)
    return folder


def _reopen(folder: Path, config: DictConfig) -> None:
    """Let a finished run go on if it was given more epochs; its old results get a number."""
    finished = load_metrics(folder)
    if finished is None:
        return
    epochs = config.trainer.max_epochs
    if epochs <= finished.get("epochs", epochs):
        raise PrunerError(
            f"resume={folder}: this run is finished (metrics.json); "
            f"trainer.max_epochs=N with a larger N goes on"
        )
    for path in sorted(folder.rglob(METRICS_FILE)):
        path.rename(path.with_name(f"metrics-{finished['epochs']}-epochs.json"))
    save_config(folder, config)


@contextmanager
def _log_to(folder: Path) -> Iterator[None]:
    """Write the log of this run, and of no other of the same process, into its folder."""
    handler = logging.FileHandler(folder / "run.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logging.getLogger("pruner").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("pruner").removeHandler(handler)
        handler.close()


def _announce_transfer(platform: str, root: RecordRoot) -> None:
    known = ", ".join(root.platforms)
    if len(root.platforms) < 2:
        raise PrunerError(
            f"{root.path} has no records for platform={platform}, only for {known}; learning from "
            f"other platforms needs two of them; choose platform={root.platforms[0]}"
        )
    say(
        f"no records for platform={platform} in {root.path}: training on {known} instead, "
        "judged by leaving out one platform at a time"
    )


def plan(
    config: DictConfig, folder: Path, keys: Sequence[TaskKey], *, transfer: bool
) -> list[Part]:
    """Every fit of the run: one for each seed, and with `transfer` one for each platform left out.

    The first part holds the checkpoint of the run; a single part lives in the run folder itself.
    """
    seeds = list(config.seeds) if config.seeds is not None else [config.seed]
    if not seeds or len(set(seeds)) != len(seeds):
        raise PrunerError(f"seeds={seeds}: give at least one seed, each once")
    options = plain(config.split)
    splits = {"": make_split(options.pop("name"), keys, options.pop("seed"), **options)}
    if transfer:
        splits.update(_left_out(config, keys))
    parts = []
    for left, split in splits.items():
        for seed in seeds:
            names = [f"without-{left}"] if left else []
            names += [f"seed-{seed}"] if len(seeds) > 1 else []
            part_folder = folder.joinpath(*names)
            parts.append(Part(name="/".join(names), folder=part_folder, split=split, seed=seed))
    return parts


def _left_out(config: DictConfig, keys: Sequence[TaskKey]) -> dict[str, Split]:
    present = sorted({key.platform for key in keys})
    chosen = {"all": present, "none": []}.get(str(config.leave_out))
    names = list(config.leave_out) if chosen is None else chosen
    unknown = sorted(set(names) - set(present))
    if unknown:
        raise PrunerError(f"leave_out={names}: no records for {unknown}; known: {present}")
    return {
        name: make_split("by_platform", keys, config.split.seed, held_out=[name]) for name in names
    }


def summarise(
    folder: Path,
    parts: Sequence[Part],
    results: Mapping[str, Mapping[str, Any] | None],
    dataset: Dataset,
    *,
    transfer: bool,
) -> dict[str, Any]:
    """The last line: means over the parts that judge the run, and each of them.

    With `transfer` those are the fits that left a platform out; the checkpoint has seen them all.
    """
    own = [part for part in parts if not part.name.startswith("without-")]
    left_out = [part for part in parts if part.name.startswith("without-")]
    judges = left_out if transfer and left_out else own
    found = [(part, results[part.name]) for part in judges]
    done = [(part, result) for part, result in found if result is not None]
    summary: dict[str, Any] = {
        "run_dir": str(folder),
        "checkpoint": str(_best(own, results).checkpoint),
        "finished": all(result is not None for result in results.values()),
        "data": dataset.report(),
    }
    if done:
        summary |= _averages([result for _, result in done])
        summary["parts"] = {part.name or "run": _short(result) for part, result in done}
    if transfer:
        summary["validation"] = "leave one platform out" if left_out else "tasks of all platforms"
    return summary


def _best(parts: Sequence[Part], results: Mapping[str, Mapping[str, Any] | None]) -> Part:
    """The seed with the best validation metric; the first where that is not known."""

    def value(part: Part) -> float:
        return float((results[part.name] or {}).get("best_valid", -np.inf))

    return max(parts, key=value)


def _averages(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = results[0]
    summary: dict[str, Any] = {
        name: float(np.mean([result[name] for result in results])) for name in AVERAGED
    }
    if len(results) > 1:
        summary["spread"] = {
            name: float(np.std([result[name] for result in results], ddof=1)) for name in AVERAGED
        }
    summary["random"] = first["random"] if len(results) == 1 else _random_mean(results)
    if len(results) == 1:
        summary["best_k"] = first["best_k"]
    for name in ("num_tasks", "num_programs", "epochs", "num_threads"):
        summary[name] = max(result.get(name, 0) for result in results)
    rates = [r["train_programs_per_second"] for r in results if "train_programs_per_second" in r]
    if rates:
        summary["train_programs_per_second"] = float(np.mean(rates))
    return summary


def _random_mean(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = ("top1", "top5", "pairwise_accuracy")
    return {name: float(np.mean([r["random"][name] for r in results])) for name in names}


def _short(result: Mapping[str, Any]) -> dict[str, Any]:
    """A part's row in the summary; its full metrics are in its own folder."""
    names = (*AVERAGED[:5], "seed", "best_epoch", "fit_seconds", "num_tasks", "num_programs")
    return {name: result[name] for name in names if name in result}


def main() -> None:
    """Open the door."""
    run_door("train", train)


if __name__ == "__main__":
    main()
