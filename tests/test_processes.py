"""Work in other processes: what it returns, what a crash costs, and that nothing outlives us."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pruner import processes
from pruner.commands import Commands
from pruner.errors import DataError, MissingExtra, PrunerError, UnknownStep, UnsupportedProgram
from pruner.processes import (
    NO_WORKER,
    TIMEOUT,
    NoReference,
    Worker,
    WorkerPool,
    _kind,
    in_workers,
)
from tests.attack.faults import forked_from
from tests.commands import python
from tests.paths import REPOSITORY

# Functions over jobs in worker processes.


def double(number):
    return 2 * number


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_every_job_is_done_once_in_one_of_the_workers(method):
    with in_workers([1, 2, 3], double, 2, method=method) as ended:
        assert sorted(done.get() for done in ended()) == [2, 4, 6]


def test_forked_workers_share_what_was_read_and_run_while_the_body_goes_on(tmp_path):
    parent, read = os.getpid(), {"a": 1}

    def job(name):
        (tmp_path / name).touch()
        return os.getpid() != parent, read[name]

    with in_workers(["a"], job, 1) as ended:
        while not (tmp_path / "a").exists():
            time.sleep(0.01)
        assert [done.get() for done in ended()] == [(True, 1)]


def test_a_mistake_is_one_line_and_the_next_job_follows():
    def job(number):
        if number == 0:
            raise PrunerError("no 0")
        return number

    told = []
    with in_workers([0, 1], job, 1, log=told.append) as ended:
        wrong, right = ended()
    assert (str(wrong.error), right.get(), told) == ("no 0", 1, ["error: no 0"])
    with pytest.raises(PrunerError, match="no 0"):
        wrong.get()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "x"), "x: No space left on device"),
        (OSError("no more"), "OSError: no more"),  # of no disk
        (ValueError("3"), "ValueError: 3"),
    ],
)
def test_a_full_disk_or_a_bug_costs_its_own_job(capfd, error, line):
    def job(number):
        if number == 0:
            raise error
        return signal.getsignal(signal.SIGINT)

    with in_workers([0, 1], job, 1) as ended:
        wrong, right = ended()
    assert (str(wrong.error), right.get()) == (line, signal.SIG_IGN)
    assert ("Traceback" in capfd.readouterr().err) == line.startswith(type(error).__name__)


def test_a_worker_that_is_killed_costs_its_own_job():
    def job(number):
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.3)  # so that the other worker is there
        return number

    with in_workers([0, 1, 2], job, 2) as ended:
        done = list(ended())
    assert sorted(one.value for one in done if one.error is None) == [1, 2]
    assert [str(one.error)[:27] for one in done if one.error] == ["a worker process was ended,"]


def test_leaving_the_body_ends_the_workers_and_waiting_has_a_limit():
    def deaf(_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)

    start = time.monotonic()
    with in_workers([0], deaf, 1) as ended:
        assert list(ended(0.1)) == []
    assert time.monotonic() - start < 30


# Programs with logs.


def test_results_come_as_the_jobs_end_arguments_stay_and_output_and_errors_go_to_the_log(tmp_path):
    log = tmp_path / "logs" / "log.txt"
    with Commands(tmp_path) as commands:
        codes = dict(
            commands.each([2, 0], lambda code: (code, commands.run(f"exit {code}", log)), 2)
        )
        assert codes == {2: 2, 0: 0}
        assert commands.run(["touch", str(tmp_path / "two words; $HOME")], log) == 0
    assert (tmp_path / "two words; $HOME").is_file()
    commands, log = Commands(tmp_path, {"OF_THIS_TEST": "here"}), tmp_path / "log"
    commands.run("pwd", log)
    commands.run("echo $OF_THIS_TEST >&2", log, append=True)
    assert log.read_text() == f"{tmp_path}\nhere\n"


def test_a_signal_ends_what_runs_and_starts_nothing_more(tmp_path):
    def job(number):
        return commands.run(
            f"touch {tmp_path}/{number}; sleep 60; touch {tmp_path}/late", tmp_path / "log"
        )

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
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "log"}


def test_a_signal_that_another_thread_takes_ends_it_too(tmp_path):
    """The system wakes one thread of a process for a signal, where it is busy not the first."""

    begun = tmp_path / "begun"

    def job(_):
        threading.Thread(target=end_it, args=(threading.get_ident(),), daemon=True).start()
        return commands.run(f"touch {begun}; sleep 60", tmp_path / "log")

    def end_it(worker):
        while not begun.exists():
            time.sleep(0.01)
        signal.pthread_kill(worker, signal.SIGTERM)

    start = time.monotonic()
    with Commands(tmp_path) as commands, pytest.raises(SystemExit):
        list(commands.each([0], job, 1))
    assert time.monotonic() - start < 30


def test_what_is_being_started_is_stopped_too(tmp_path, monkeypatch):
    commands = Commands(tmp_path)

    class Popen(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            commands.end()

    monkeypatch.setattr(subprocess, "Popen", Popen)
    assert commands.run("sleep 60", tmp_path / "log") == -signal.SIGTERM


# It is ready once it listens; what follows "kept" is for a command that would sleep on.
KEEPS = "trap 'echo kept; exit' INT; echo ready; sleep 60 & wait"
DEAF = "trap '' INT; echo ready; sleep 60"


@pytest.fixture
def ready(tmp_path, monkeypatch):
    """Seconds of a limit count once the command is ready, however long it takes to start."""

    class Popen(subprocess.Popen):
        def wait(self, timeout=None):
            while self.poll() is None and b"ready" not in (tmp_path / "log").read_bytes():
                time.sleep(0.01)
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored behind a shell's &
    yield
    signal.signal(signal.SIGINT, before)


def test_a_command_whose_time_is_over_keeps_its_best_or_is_killed(tmp_path, ready):
    assert Commands().run(KEEPS, tmp_path / "log", limit_s=0.1) is None
    assert (tmp_path / "log").read_text() == "ready\nkept\n"
    start = time.monotonic()
    assert Commands().run(DEAF, tmp_path / "log", limit_s=0.1, patience_s=0.1) is None
    assert time.monotonic() - start < 30  # not the minute that it sleeps


def test_a_command_is_watched_and_ends_where_it_is_wanted_no_more(tmp_path):
    looks = []

    def watch():
        looks.append(1)
        return len(looks) < 3

    # its interrupt is ignored behind a shell's &
    code = Commands().run("sleep 60", tmp_path / "log", watch=watch, patience_s=0.1)
    assert (code, len(looks)) == (None, 3)


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_here_ends_a_command_and_another_at_once(tmp_path, monkeypatch, times):
    began = []

    class Popen(subprocess.Popen):
        def wait(self, timeout=None):
            if len(began) < times:
                began.append(self)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    with pytest.raises(KeyboardInterrupt):
        Commands().run(DEAF, tmp_path / "log", patience_s=0.1 if times == 1 else 600.0)
    assert began[0].returncode is not None


# Guarded workers.

JOBS = "tests.worker_jobs"


@pytest.fixture(scope="module", autouse=True)
def _server_of_these_tests():
    """The workers of all later tests would import TVM anew where their server had none."""
    with forked_from([JOBS]):
        yield


@pytest.fixture
def pool():
    made = WorkerPool(1, JOBS, timeout_s=60, memory_bytes=1 << 30)
    yield made
    made.close()


def test_closing_waits_for_no_job(pool):
    assert pool.submit("nap", 0).result().value == 0
    at_work, waiting = pool.submit("nap", 50), pool.submit("nap", 50)
    while not at_work.running():
        time.sleep(0.01)
    time.sleep(0.3)
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 30
    assert at_work.result().error == NO_WORKER  # nobody is to blame
    assert waiting.cancelled()


def test_closing_waits_for_no_start(pool):
    pool.warm_up(wait=False)
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 30


def test_what_is_closed_starts_nothing(pool):
    (worker,) = pool._workers
    pool.close()
    assert worker.call("nap", 0).error == NO_WORKER
    assert worker._process is None


@pytest.mark.parametrize(("times", "error"), [(1, None), (2, NO_WORKER)])
def test_a_worker_that_is_ended_while_it_starts_is_started_again(pool, monkeypatch, times, error):
    (worker,) = pool._workers
    start, ended = worker.start, []

    def start_and_end():
        start()
        if len(ended) < times:
            ended.append(worker._process.pid)
            os.kill(ended[-1], signal.SIGKILL)

    monkeypatch.setattr(worker, "start", start_and_end)
    reply = pool.submit("nap", 0).result()
    assert (reply.error, len(ended)) == (error, times)
    assert pool.submit("nap", 0).result().value == 0  # and the next job has a worker


def test_a_worker_that_does_not_start_is_not_the_jobs_fault(monkeypatch):
    monkeypatch.setattr(processes, "_START_S", 0.0)
    with Worker(JOBS) as worker:
        assert worker.call("nap", 0).error == NO_WORKER
        monkeypatch.undo()
        assert worker.call("nap", 0).value == 0  # it starts another


@pytest.mark.parametrize(
    ("job", "error", "message"),
    [
        (("nap", 50), TIMEOUT, "stopped after 0.2 s"),
        (("die", 7), "crash", "exit status 7: last words"),
        (("end_by", signal.SIGSEGV), "illegal_access", "SIGSEGV"),
        (("allocate", 1 << 40), "out_of_memory", "MemoryError"),
        (("fail", "no such thing"), "error", "ValueError: no such thing"),
    ],
)
def test_every_failure_is_a_reply_and_the_next_job_has_a_worker(job, error, message):
    with Worker(JOBS, memory_bytes=4 << 30) as worker:
        worker.call("nap", 0)
        reply = worker.call(*job, timeout_s=0.2 if error == TIMEOUT else None)
        assert (reply.error, reply.value) == (error, None)
        assert message in reply.message
        assert worker.call("nap", 0).value == 0


@pytest.mark.parametrize(("times", "error"), [(1, None), (2, "crash")])
def test_a_worker_that_somebody_else_ends_costs_its_job_nothing_once(tmp_path, times, error):
    with Worker(JOBS) as worker:
        reply = worker.call("end_so_often", tmp_path, times)
        assert (reply.error, reply.value) == (error, None if error else times)
        assert error is None or "SIGKILL" in reply.message


def test_kinds_of_exceptions():
    assert _kind(ConnectionError("no tracker"))[0] == "no_device"
    assert _kind(BrokenPipeError("of a compiler"))[0] == "error"
    assert _kind(NoReference("not there"))[0] == "no_reference"
    assert _kind(RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS"))[0] == "illegal_access"
    assert _kind(MemoryError())[0] == "out_of_memory"


def test_a_fresh_interpreter_remembers_and_its_mistakes_are_one_line(tmp_path):
    log = tmp_path / "logs" / "log"
    with Worker(JOBS, method="spawn", environment={"OF_THIS_TEST": "here"}) as worker:
        assert worker.ask("count", log_file=log) == (1, "here")
        assert worker.ask("count", log_file=log) == (2, "here")
        assert log.read_text() == "counted\n"
        with pytest.raises(PrunerError, match=f"^out is wrong; {log} has the whole output$"):
            worker.ask("refuse", "out", log_file=log)
        assert log.read_text() == "out is wrong\n"
        assert worker.ask("count", log_file=log)[0] == 3  # it goes on
        with pytest.raises(PrunerError, match=f"^exit status 7: last words; {log} has"):
            worker.ask("die", 7, log_file=log)
        assert "last words" in log.read_text()


def test_a_module_that_cannot_be_imported_says_why(tmp_path):
    log = tmp_path / "log"
    with (
        Worker("tests.no_such_module", method="spawn") as worker,
        pytest.raises(PrunerError, match=f"No module named .*; {log} has the whole output$"),
    ):
        worker.ask("count", log_file=log)
    assert "Traceback" in log.read_text()


def test_a_forked_worker_needs_no_module_and_several_work_at_once():
    here = os.getpid()
    workers = [
        Worker(SimpleNamespace(job=lambda n=n: (n, os.getpid() != here)), method="fork")
        for n in (1, 2)
    ]
    for worker in workers:
        worker.send("job")
    time.sleep(0.5)
    replies = [worker.receive(30) for worker in workers]
    assert [reply.value for reply in replies] == [(1, True), (2, True)]
    assert min(reply.seconds for reply in replies) > 0.2  # counted since they began
    for worker in workers:
        worker.stop()


# Where the sockets of workers lie.

_SOCKETS = """
import os, signal, sys
from pruner.processes import WorkerPool, Worker, keep_sockets_together

keep_sockets_together()
pool = WorkerPool(1, "tests.worker_jobs", timeout_s=60)
assert pool.submit("nap", 0).result().value == 0
with Worker("tests.worker_jobs", method="spawn") as worker:
    assert worker.call("nap", 0).value == 0
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
pool.close()
"""


def started(folder, how, program=_SOCKETS):
    return python("-c", program, how, TMPDIR=str(folder))


def test_sockets_of_killed_processes_go():
    with tempfile.TemporaryDirectory(prefix="sockets-") as place:  # their names are short
        folder = Path(place)
        assert started(folder, "killed").returncode == -signal.SIGKILL
        (left,) = folder.iterdir()
        assert left.stat().st_mode & 0o777 == 0o700
        assert list(left.rglob("listener-*"))
        done = started(folder, "ended")
        assert (done.returncode, done.stderr, list(folder.iterdir())) == (0, "", [])


def test_a_long_name_is_left_to_python(tmp_path):
    folder = tmp_path / ("x" * 60)
    folder.mkdir()
    words = "from pruner.processes import keep_sockets_together\n"
    words += "keep_sockets_together()\nimport tempfile; print(tempfile.gettempdir())"
    done = started(folder, "", words)
    assert done.stdout.strip() == str(folder)
    assert list(folder.iterdir()) == []


# The end of the parent.

_WORKER = """
import multiprocessing, os, sys, time
from pathlib import Path

def work(ready, outlived):
    parent = os.getppid()
    Path(ready).touch()
    while os.getppid() == parent:
        time.sleep(0.01)
    from pruner.processes import end_with_parent
    end_with_parent()
    Path(outlived).touch()

if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=work, args=sys.argv[1:])
    worker.start()
    print(worker.pid, flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
"""


def ends(number):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_a_worker_whose_parent_is_gone_before_it_asks_ends_at_once(tmp_path):
    """No signal comes then: workers of a featurize killed while they started stayed."""
    script, ready, outlived = tmp_path / "main.py", tmp_path / "ready", tmp_path / "outlived"
    script.write_text(_WORKER)
    done = python(script, ready, outlived, timeout=60)
    assert ends(int(done.stdout))
    assert ready.exists()
    assert not outlived.exists()


_AT_WORK = """
import os, sys, time
from types import SimpleNamespace
from pruner.processes import Worker

method = sys.argv[1]
jobs = SimpleNamespace(nap=time.sleep) if method == "fork" else "tests.worker_jobs"
worker = Worker(jobs, method=method)
worker.send("nap", 600)
assert worker._answers()
print(worker._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    "method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)]
)
def test_a_worker_at_work_ends_with_its_killed_parent(method):
    done = python("-c", _AT_WORK, method, timeout=120)
    assert ends(int(done.stdout))


def test_modules_of_the_server_add_up():
    """The order of those who name them does not matter: the server starts with all."""
    code = (
        "from multiprocessing.forkserver import _forkserver\n"
        "from pruner.processes import preload\n"
        "preload('one', 'two')\npreload('one')\npreload('three')\n"
        "print(*_forkserver._preload_modules)\n"
    )
    assert python("-c", code).stdout.split() == ["one", "two", "three"]


INTERRUPTED = """
import multiprocessing.forkserver, os, signal, threading, time
from pathlib import Path
from pruner.processes import Worker, preload

def interrupt():
    while not Path("begun").exists():
        time.sleep(0.01)
    os.kill(multiprocessing.forkserver._forkserver._forkserver_pid, signal.SIGINT)
    Path("interrupted").touch()

preload("slow")
threading.Thread(target=interrupt).start()
worker = Worker("tests.worker_jobs", timeout_s=60)
print(worker.call("ready").value)
worker.stop()
"""


# Its import ends only after the interrupt.
SLOW = """
import time
from pathlib import Path
Path("begun").touch()
while not Path("interrupted").exists():
    time.sleep(0.01)
"""


def test_ctrl_c_while_the_server_imports_its_modules_costs_no_worker(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    done = python("-c", INTERRUPTED, cwd=tmp_path, timeout=120, PYTHONPATH=path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_a_worker_whose_start_failed_can_be_stopped(monkeypatch):
    worker = Worker(JOBS, timeout_s=60)
    context = multiprocessing.get_context("forkserver")
    monkeypatch.setattr(context.Process, "start", lambda _: (_ for _ in ()).throw(EOFError))
    assert worker.call("ready").error == NO_WORKER
    worker.stop()


@pytest.mark.parametrize(
    "error",
    [
        DataError("records/k80: no usable record"),
        UnsupportedProgram("unknown-operator", "winograd_layer"),
        UnknownStep("unknown-step", "PPT"),
        MissingExtra("tvm", "tvm"),
    ],
)
def test_an_error_survives_a_worker_process(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))
    assert isinstance(copy, PrunerError)


def test_a_reason_is_a_code_and_a_missing_library_names_the_command():
    error = UnknownStep("unknown-step", "PPT")
    assert (error.reason, str(error)) == ("unknown-step", "unknown-step: PPT")
    assert str(UnsupportedProgram("no-graph")) == "no-graph"
    assert "pip install 'pruner[wandb]'" in str(MissingExtra("wandb", "wandb"))
