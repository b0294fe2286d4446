"""A package made from the index that pip is set up for, unpacked and used without any."""

import json
import os
import subprocess
import sys

import pytest

from tests.paths import REPOSITORY

# With them a package is gigabytes; a plan needs none of it, and programs that have it are there.
WITHOUT = "[torch,nvidia-*,triton,sympy,networkx]"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The folder of its parts."""
    out = tmp_path_factory.mktemp("package") / "package"
    words = [f"out={out}", f"without={WITHOUT}", "part_mb=20"]
    made = subprocess.run(
        [sys.executable, "-m", "experiments.gpu.package", *words],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode == 2 and "pip" in made.stderr.splitlines()[-1]:
        pytest.skip(f"no index that pip could use: {made.stderr.splitlines()[-1]}")
    assert made.returncode == 0, made.stderr
    manifest = json.loads(made.stdout.splitlines()[-1])
    assert "torch" in manifest["left_out"]
    assert max(path.stat().st_size for path in out.iterdir()) <= 20_000_000
    return out


def run(package, python, place, *words):
    """What a command says there, of a Python that sees no index and nothing of this checkout."""
    alone = {"PATH": os.defpath, "HOME": str(place.parent), "PIP_NO_INDEX": "1"}
    done = subprocess.run(
        [python, "-I", package / "unpack.py", place, *words],
        cwd=place.parent, env=alone, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_package_plans_in_an_empty_environment(package, tmp_path):
    python, place = os.path.realpath(sys.executable), tmp_path / "place"
    words = ["platform=h200", "plan=true", f"out={tmp_path / 'results'}"]
    assert run(package, python, place, "experiments.gpu.run", *words)["steps"] > 20


@pytest.mark.tvm
@pytest.mark.slow
def test_a_package_compiles_and_runs_programs_with_the_torch_that_is_there(package, tmp_path):
    place = tmp_path / "place"
    sizes = [f"workload.{name}=64" for name in "mnk"]
    found = run(
        package, sys.executable, place, "tune", "workload=matmul", *sizes, "platform=cpu",
        "budget.trials=2", "measure.min_repeat_ms=1", f"outputs={tmp_path / 'outputs'}",
    )  # fmt: skip
    assert (found["trials"], found["failed"]) == (2, 0)
    where = subprocess.run(
        [place / "env" / "bin" / "python", "-P", "-c", "import tvm, pruner\n"
         "print(tvm.__file__, pruner.__file__)"],
        cwd=tmp_path, env={"PATH": os.defpath}, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert all(path.startswith(str(place)) for path in where)
