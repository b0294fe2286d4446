"""``pruner import_checkpoint FILE``: convert an official Pruner checkpoint to ours."""

import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pruner import features
from pruner.cli.shared.options import plain
from pruner.cli.shared.output import say
from pruner.cli.shared.runs import open_run
from pruner.errors import PrunerError, check_chosen
from pruner.files import save_metrics
from pruner.models.checkpoint.checkpoint import BEST, CheckpointInfo, git_commit, save_checkpoint
from pruner.models.checkpoint.official import NUM_DATAFLOW_ROWS, official_ranker, read_official
from pruner.models.registry import ModelSpec


def import_checkpoint(config: DictConfig) -> dict[str, Any]:
    """Run the command; return the object of the last line."""
    start = time.perf_counter()
    if config.file is None:
        raise PrunerError("no file given; use: pruner import_checkpoint FILE (.pkl or .npz)")
    source = Path(str(config.file))
    check_chosen("norm_statistics", [config.norm_statistics], ("batch", "running"))
    weights = read_official(source)
    ranker = official_ranker(weights, config.norm_statistics)
    given = {"num_dataflow_rows": NUM_DATAFLOW_ROWS, "norm_statistics": config.norm_statistics}
    info = CheckpointInfo(
        model=ModelSpec(name="PaCM", arguments=given),
        feature_version=features.FEATURE_SET_VERSION,
        dataflow="official",
        config=plain(config) | {"source": source.name, "source_sha256": weights.sha256},
        git_commit=git_commit(),
    )
    folder = open_run(config, "import_checkpoint", source.stem.replace(" ", "_"))
    save_checkpoint(folder / BEST, ranker, info)
    num_parameters = sum(p.numel() for p in ranker.network.parameters())
    say(f"{num_parameters:,} parameters and their column maxima from {source.name}")
    result = {
        "checkpoint": str(folder / BEST),
        "run_dir": str(folder),
        "num_parameters": num_parameters,
        "source_sha256": weights.sha256,
        "seconds": round(time.perf_counter() - start, 2),
    }
    save_metrics(folder, result)
    return result
