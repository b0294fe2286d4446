"""Contenders that answer, but run nothing: their worker has the functions below."""

import os
import sys
import time
from pathlib import Path

import numpy as np

from pruner.tune.compare.baselines import Baseline

FAKE = {}


def load(runner, arguments, threads):
    """Keep the arguments; meet another contender before, where there is one to wait for."""
    FAKE.update(arguments)
    if "here" in arguments:
        here = Path(arguments["here"])
        (here / runner).touch()
        while arguments["meets"] and not (here / arguments["meets"]).exists():
            time.sleep(0.01)
    if arguments["fails"] == "start":
        sys.stderr.write("no such library")
        sys.stderr.flush()
        os._exit(1)
    return {"version": runner}


def save(path):
    """Save the outputs."""
    np.savez(path, np.array(FAKE["output"]))


def run_for(seconds):
    """The latencies; a letter into the diary."""
    if FAKE["fails"] == "run":
        raise ValueError("no memory")
    with Path(FAKE["diary"]).open("a") as file:
        file.write(FAKE["name"])
    return FAKE["latencies"]


def rest(most_s):
    """A letter into the diary of the rests."""
    with Path(FAKE["diary"] + ".rests").open("a") as file:
        file.write(FAKE["name"])


def fake(name, latencies_s, diary, *, output=(1.0, 2.0), fails="", **more):
    arguments = {"name": name, "latencies": latencies_s, "output": output, "diary": str(diary)}
    arguments |= {"fails": fails, **more}
    return Baseline(name=name, label=name, runner=name, arguments=arguments, jobs=__name__)
