"""What torch writes is there whole or not at all, and a full disk is told by the file's name."""

import resource
from contextlib import contextmanager

import pytest
import torch

from pruner.errors import DataError
from pruner.models.checkpoint.archive import load_archive, save_archive
from pruner.models.training.lightning_ways import WholeFiles

WRITERS = {
    "of ours": lambda path, content: save_archive(path, content),
    "of lightning": lambda path, content: WholeFiles().save_checkpoint(content, str(path)),
}


@contextmanager
def disk_of(size):
    """No file of this process grows beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_full_disk_keeps_the_earlier_file_and_is_told_by_name(tmp_path, write):
    path = tmp_path / "last.ckpt"
    write(path, {"epoch": 1, "weight": torch.ones(3)})
    with disk_of(100_000), pytest.raises(OSError, match=str(path)):
        write(path, {"epoch": 2, "weight": torch.ones(100_000)})
    found = load_archive(path)
    assert found["epoch"] == 1
    assert found["weight"].tolist() == [1.0, 1.0, 1.0]
    assert list(tmp_path.iterdir()) == [path]


def test_the_name_of_the_file_is_not_in_it(tmp_path):
    for name in ("a.pt", "b.pt"):
        save_archive(tmp_path / name, {"weight": torch.ones(3)})
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


@pytest.mark.parametrize("levels", [0, 3], ids=["flat", "deep"])
def test_tensors_that_claim_more_than_the_file_has_are_refused(tmp_path, levels):
    """A value that is repeated without being there: 4 bytes that would become 4 TB."""
    path, content = tmp_path / "a.pt", torch.zeros(1).expand(2**40)
    for _ in range(levels):
        content = {"a": [(content,)]}
    torch.save({"state": content}, path)
    assert path.stat().st_size < 5000
    with pytest.raises(DataError, match="its tensors claim"):
        load_archive(path)


def test_weights_that_share_their_values_pass_and_trees_without_end_are_walked_once(tmp_path):
    one = torch.arange(1000.0)
    tree = [one]
    for _ in range(60):
        tree = [tree, tree]
    torch.save({"a": one, "b": one, "c": one.view(10, 100), "tree": tree}, tmp_path / "a.pt")
    found = load_archive(tmp_path / "a.pt")
    assert found["c"][9, 99] == 999


def test_a_flipped_bit_of_a_weight_is_refused(tmp_path):
    """PyTorch's own reader takes it: a model that ranks a little otherwise."""
    path = tmp_path / "a.pt"
    save_archive(path, {"weight": torch.full((1000,), 1.5)})
    whole = path.read_bytes()
    place = whole.index(torch.full((9,), 1.5).numpy().tobytes()) + 402
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert torch.load(path, weights_only=True)["weight"].tolist() != [1.5] * 1000
    with pytest.raises(DataError, match="does not match its checksum"):
        load_archive(path)
