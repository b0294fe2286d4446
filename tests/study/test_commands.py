"""pruner.study.commands: an interrupted start leaves nothing behind."""

import os
import signal
import subprocess
import threading
import time

import pytest

from pruner.study.commands import Commands


@pytest.fixture
def log(tmp_path):
    with (tmp_path / "log.txt").open("w") as file:
        yield file


def test_results_come_as_the_jobs_end_and_a_program_takes_its_arguments_as_they_are(log, tmp_path):
    with Commands(tmp_path) as commands:
        codes = dict(
            commands.each([2, 0], lambda code: (code, commands.run(f"exit {code}", log)), 2)
        )
        assert codes == {2: 2, 0: 0}
        assert commands.run(["touch", str(tmp_path / "two words; $HOME")], log) == 0
    assert (tmp_path / "two words; $HOME").is_file()


def test_a_signal_ends_what_runs_and_starts_nothing_more(log, tmp_path):
    def job(number):
        return commands.run(f"touch {tmp_path}/{number}; sleep 60; touch {tmp_path}/late", log)

    def end_both():
        while not all((tmp_path / number).exists() for number in "01"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_both, daemon=True).start()
    start = time.monotonic()
    with Commands(tmp_path) as commands, pytest.raises(SystemExit) as stop:
        list(commands.each(range(4), job, 2))
    assert stop.value.code == 143
    assert time.monotonic() - start < 30
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "log.txt"}


def test_a_signal_that_another_thread_takes_ends_it_too(log, tmp_path):
    """The system wakes one thread of a process for a signal, where it is busy not the first."""

    def job(_):
        worker = threading.get_ident()
        threading.Timer(0.5, signal.pthread_kill, (worker, signal.SIGTERM)).start()
        return commands.run("sleep 60", log)

    start = time.monotonic()
    with Commands(tmp_path) as commands, pytest.raises(SystemExit):
        list(commands.each([0], job, 1))
    assert time.monotonic() - start < 30


def test_what_is_being_started_is_stopped_too(log, tmp_path, monkeypatch):
    commands = Commands(tmp_path)

    class Popen(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            commands.end()

    monkeypatch.setattr(subprocess, "Popen", Popen)
    assert commands.run("sleep 60", log) == -signal.SIGTERM
