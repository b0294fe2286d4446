"""The door for official checkpoints."""

import numpy as np
import pytest
import torch

from pruner.models.checkpoint.checkpoint import load_checkpoint
from pruner.models.checkpoint.official import LAYERS
from pruner.models.networks.pacm import PaCM


@pytest.fixture
def archive(tmp_path):
    torch.manual_seed(3)
    ours = {v: k for k, v in LAYERS.items()}
    arrays = {}
    for name, value in PaCM(num_dataflow_rows=8).state_dict().items():
        layer = next(layer for layer in ours if name.startswith(layer + "."))
        arrays["param." + ours[layer] + name.removeprefix(layer)] = value.numpy()
    path = tmp_path / "of ficial=1.npz"
    np.savez(path, norm_statement=np.ones(174), norm_dataflow=np.ones(23), **arrays)
    return path


def test_a_file_becomes_a_checkpoint_that_evaluate_takes(command, archive, toy_root):
    code, result, _ = command("import_checkpoint", archive, "run_id=r")
    assert code == 0
    assert result["num_parameters"] == 417_409
    ranker, info = load_checkpoint(archive.parent / result["checkpoint"], feature_version="toy-1")
    assert info.dataflow == "official"
    assert ranker.network.num_dataflow_rows == 8
    assert ranker.network.norm.statistics == "batch"
    code, judged, _ = command(
        "evaluate", f"checkpoint={result['run_dir']}", f"data.root={toy_root}", "platform=v100"
    )
    assert code == 0
    assert judged["num_tasks"] == 6


def test_mistakes_end_in_one_line(command, tmp_path):
    for arguments in ([], ["nowhere.npz"], ["norm_statistics=none", "x.npz"]):
        code, result, err = command("import_checkpoint", *arguments)
        assert (code, result) == (2, None)
        assert len(err.strip().splitlines()) == 1
        assert "error: " in err
