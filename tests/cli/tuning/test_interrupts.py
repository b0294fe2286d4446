"""Signals that a process sends itself: the first is kept, the handlers before come back."""

import os
import signal
import subprocess
import sys

import pytest

from pruner.cli.tuning.interrupts import Interrupts
from tests.commands import python


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_asks(number, code):
    before, told = signal.getsignal(number), []
    interrupts = Interrupts(told.append)
    with interrupts as asked:
        assert not asked()
        assert interrupts.exit_code == 0
        os.kill(os.getpid(), number)
        assert asked()
    assert interrupts.exit_code == code
    assert len(told) == 1
    assert signal.getsignal(number) is before


def test_the_second_ends_the_process():
    program = (
        "import os, signal\n"
        "from pruner.cli.tuning.interrupts import Interrupts\n"
        "with Interrupts(print):\n"
        "    for _ in range(2):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('not reached')\n"
    )
    done = python("-c", program)
    assert done.returncode == -signal.SIGINT
    assert "not reached" not in done.stdout


def test_the_second_ends_the_process_within_a_long_call_too():
    """Handlers of Python run only after a call into C, which here takes minutes."""
    program = (
        "import itertools, os, signal, subprocess, sys\n"
        "from pruner.cli.tuning.interrupts import Interrupts\n"
        "with Interrupts(print):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    words = f'import os, time; time.sleep(0.5); os.kill({os.getpid()}, 2)'\n"
        "    subprocess.Popen([sys.executable, '-c', words])\n"
        "    sum(itertools.repeat(1, 10**11))\n"
    )
    assert python("-c", program, timeout=60).returncode == -signal.SIGINT


PROGRAM = """
import os, signal, sys, time
from pruner.cli.shared.door import run_door

def task(config):
    child = os.fork()
    if not child:
        time.sleep(60)
    time.sleep(0.2)
    os.kill(child, 15)
    _, status = os.waitpid(child, 0)
    try:
        print(os.waitstatus_to_exitcode(status), flush=True)  # from here on it may be asked to end
        time.sleep(60)
    finally:
        print("put away", flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background
run_door("report", [], task)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_asked_to_end_puts_away_and_says_so(number, code):
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as command:  # fmt: skip
        assert command.stdout.readline() == "-15\n"  # a process of its own ended at once
        command.send_signal(number)
        out, err = command.communicate(timeout=60)
    assert (command.returncode, out) == (code, "put away\n")
    assert err.splitlines()[-1] == "interrupted"
