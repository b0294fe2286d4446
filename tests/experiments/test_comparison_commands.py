"""Commands of steps: exit code, last line of the log, what is started."""

import signal
import sys

from experiments.common.comparison import run_command, started


def run(tmp_path, code, **more):
    log = tmp_path / "logs" / "one.log"
    return run_command([sys.executable, "-c", code], log, place=tmp_path, **more)


def test_code_and_last_line_of_the_log(tmp_path):
    ended = run(tmp_path, "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)")
    assert (ended.code, ended.line) == (3, "two")
    assert run(tmp_path, "").line == "no reason given"


def test_a_step_starts_a_command_of_this_project_or_a_script(tmp_path):
    python = sys.executable
    assert started(["tune", "a=1"], tmp_path) == [python, "-m", "pruner.cli", "tune", "a=1"]
    assert started(["x/run.py", "a=1"], tmp_path) == [python, str(tmp_path / "x/run.py"), "a=1"]


def test_its_environment_and_its_limit(tmp_path):
    code = "import os; print(os.environ['OF_THIS_TEST'])"
    assert run(tmp_path, code, environment={"OF_THIS_TEST": "here"}).line == "here"
    # ignored behind a shell's &, an interrupt would be waited for
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    assert run(tmp_path, "import time; time.sleep(60)", limit_s=0.1).code is None
    signal.signal(signal.SIGINT, before)
