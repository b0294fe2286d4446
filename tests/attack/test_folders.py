"""Run folders of somebody else: what they name as code is not executed, whoever opens them."""

import os
import subprocess

import pytest
from omegaconf import OmegaConf

from experiments.common.comparison import started
from pruner.cli.shared.known import composed
from pruner.cli.shared.runs import save_config
from tests.paths import REPOSITORY

pytestmark = pytest.mark.slow

CODE = "import pathlib\npathlib.Path({mark!r}).touch()\n"
NAMED = {
    "a file of programs": ["workload=file", "workload.path={file}"],
    "a class": ["policy._target_=evil.Run"],
    "a factory": ["network=evil:make"],
    "a class of their own": ["models.own=[evil.Run]"],
    "an interpreter": ["policy=ansor_tvm", "+policy.environment={folder}"],
}


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Makes the folder of a run with such words, begun by somebody, and whether it ran code."""
    file, mark = tmp_path / "evil.py", tmp_path / "ran"
    file.write_text(CODE.format(mark=str(mark)))
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\ntouch {mark}\n")
    python.chmod(0o755)

    def make(words, whose):
        folder = tmp_path / "run"
        folder.mkdir()
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / whose))
        words = [word.format(file=file, folder=tmp_path) for word in words]
        save_config(folder, OmegaConf.create(composed("tune", words)))
        return folder, mark

    return make


def opened(tmp_path, *words):
    environment = os.environ | {
        "XDG_CONFIG_HOME": str(tmp_path / "mine"), "PYTHONPATH": f"{REPOSITORY}:{tmp_path}",
    }  # fmt: skip
    return subprocess.run(
        started(words, REPOSITORY), cwd=REPOSITORY, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("door", ["tune.py resume", "deploy run"])
@pytest.mark.parametrize("words", NAMED.values(), ids=NAMED)
def test_nothing_that_they_name_is_executed(begun, tmp_path, door, words):
    folder, mark = begun(words, "theirs")
    script, option = door.split()
    done = opened(tmp_path, script, f"{option}={folder}")
    assert done.returncode == 2, done.stderr
    assert "it executes" in done.stderr.splitlines()[-1]
    assert not mark.exists()


@pytest.mark.tvm
def test_what_this_user_began_goes_on(begun, tmp_path):
    folder, mark = begun(NAMED["a file of programs"], "mine")
    done = opened(tmp_path, "tune.py", f"resume={folder}")
    assert done.returncode == 2
    assert "no TIR function" in done.stderr.splitlines()[-1]
    assert mark.exists()
