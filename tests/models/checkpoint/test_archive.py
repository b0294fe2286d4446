"""What torch writes is there whole or not at all, and a full disk is told by the file's name."""

import resource
from contextlib import contextmanager

import pytest
import torch

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
