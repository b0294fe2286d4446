"""Commands within their seconds."""

import subprocess
import sys
import time

import pytest

from pruner.study.steps import command
from pruner.study.steps.command import run_command, started

KEEPS = """
import signal, sys, time
def keep(*_):
    print("kept", flush=True)
    sys.exit(0)
signal.signal(signal.SIGINT, keep)
print("ready", flush=True)
time.sleep(60)
"""
DEAF = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""


def run(tmp_path, code, **more):
    log = tmp_path / "logs" / "one.log"
    return run_command([sys.executable, "-c", code], log, place=tmp_path, **more)


def test_code_and_last_line_of_the_log(tmp_path):
    ended = run(tmp_path, "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)")
    assert (ended.code, ended.line) == (3, "two")
    assert run(tmp_path, "").line == "no reason given"


@pytest.fixture
def ready(tmp_path, monkeypatch):
    """Seconds of a limit count once the command is ready, however long Python takes to start."""

    class Popen(subprocess.Popen):
        def wait(self, timeout=None):
            while self.poll() is None and b"ready" not in (tmp_path / "logs/one.log").read_bytes():
                time.sleep(0.01)
            return super().wait(timeout)

    monkeypatch.setattr(command.subprocess, "Popen", Popen)


def test_a_command_whose_time_is_over_may_keep_its_best(tmp_path, ready):
    ended = run(tmp_path, KEEPS, limit_s=0.1)
    assert (ended.code, ended.line) == (None, "kept")


def test_one_that_does_not_listen_is_ended(tmp_path, monkeypatch, ready):
    monkeypatch.setattr(command, "ASKED_S", 0.5)
    start = time.monotonic()
    assert run(tmp_path, DEAF, limit_s=0.1).code is None
    assert time.monotonic() - start < 30  # not the minute that it sleeps


def test_a_step_starts_a_command_of_this_project_or_a_script(tmp_path):
    python = sys.executable
    assert started(["tune", "a=1"], tmp_path) == [python, "-m", "pruner.cli.tune", "a=1"]
    assert started(["x/run.py", "a=1"], tmp_path) == [python, str(tmp_path / "x/run.py"), "a=1"]


def test_its_environment(tmp_path):
    code = "import os; print(os.environ['OF_THIS_TEST'])"
    assert run(tmp_path, code, environment={"OF_THIS_TEST": "here"}).line == "here"


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_here_ends_it_and_another_at_once(tmp_path, monkeypatch, times):
    began = []

    class Popen(command.subprocess.Popen):
        def wait(self, timeout=None):
            if len(began) < times:
                began.append(self)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(command.subprocess, "Popen", Popen)
    monkeypatch.setattr(command, "ASKED_S", 0.1 if times == 1 else 600.0)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, DEAF)
    assert began[0].returncode is not None
