"""A package made from the index that pip is set up for, unpacked and used without any."""

import json
import os
import subprocess
import sys

import pytest

from tests.places import REPOSITORY

# A plan needs neither; with them a package is gigabytes.
WITHOUT = "[torch,nvidia-*,triton,apache-tvm*,sympy,networkx]"


@pytest.mark.slow
def test_a_package_runs_in_an_empty_environment(tmp_path):
    out, place = tmp_path / "package", tmp_path / "place"
    words = [f"out={out}", "extras=[]", f"without={WITHOUT}", "part_mb=20"]
    made = subprocess.run(
        [sys.executable, "-m", "pruner.cli.package", *words],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode == 2 and "pip" in made.stderr.splitlines()[-1]:
        pytest.skip(f"no index that pip could use: {made.stderr.splitlines()[-1]}")
    assert made.returncode == 0, made.stderr
    manifest = json.loads(made.stdout.splitlines()[-1])
    assert "torch" in manifest["left_out"]
    assert max(path.stat().st_size for path in out.iterdir()) <= 20_000_000
    alone = {"PATH": os.defpath, "HOME": str(tmp_path), "PIP_NO_INDEX": "1"}
    command = [os.path.realpath(sys.executable), "-I", out / "unpack.py", place]
    done = subprocess.run(
        [*command, "campaign", "platform=h200", "plan=true", f"out={tmp_path / 'results'}"],
        cwd=tmp_path, env=alone, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["steps"] > 20
