import pytest
import torch

from pruner.errors import PrunerError
from pruner.study.workers import forked


def test_jobs_run_once_in_processes_of_their_own(tmp_path):
    def write(job):
        with (tmp_path / job).open("a") as file:
            file.write(f"{torch.get_num_threads()}\n")

    with forked(["a", "b", "c"], write, 2, print) as working:
        while working():
            pass
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        "abc", "1\n"
    )


def test_a_process_with_several_threads_is_not_forked():
    torch.set_num_threads(2)
    with pytest.raises(PrunerError, match="need num_threads=1"), forked(["a"], print, 2, print):
        pass
