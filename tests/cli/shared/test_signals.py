"""SIGTERM ends a command as Ctrl-C does: in one line, once what has to be put away is."""

import signal
import subprocess
import sys

import pytest

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
