"""A package of a toy wheel, taken apart by the script that travels with it."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from experiments.common.comparison import Ended
from experiments.gpu import package
from experiments.gpu.package import Model, Options, platforms, target_words
from pruner.cli.shared.known import read_words
from pruner.errors import PrunerError
from pruner.models.checkpoint.checkpoint import BEST
from tests.paths import REPOSITORY

PROGRAM = """
import json, sys
from pathlib import Path
import toy.more
data = Path(sys.prefix).parent / "data" / "notes.txt"
print(json.dumps([sys.argv[1:], data.read_text(), toy.more.WORD]))
"""


def toy_wheel(folder):
    """A `pruner.cli`, a package with a part in .data, a program that may be run."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "pruner-1-py3-none-any.whl", "w") as archive:
        archive.writestr("pruner/__init__.py", "")
        archive.writestr("pruner/cli/__init__.py", "")
        archive.writestr("pruner/cli/__main__.py", PROGRAM)
    with zipfile.ZipFile(folder / "toy-1-py3-none-any.whl", "w") as archive:
        archive.writestr("toy/__init__.py", "")
        archive.writestr("toy-1.data/purelib/toy/more.py", "WORD = 'found'")
        archive.writestr("toy-1.data/scripts/toy", "no place for it")
        tool = zipfile.ZipInfo("toy/tool")
        tool.external_attr = 0o755 << 16
        archive.writestr(tool, "#!/bin/sh\n")


@pytest.fixture
def packed(tmp_path, monkeypatch):
    def gather(options, folder):
        toy_wheel(folder)
        return []

    monkeypatch.setattr(package, "gather", gather)
    notes = tmp_path / "notes.txt"
    notes.write_text("hello " * 1000)

    def pack(**more):
        options = {"out": str(tmp_path / "out"), "part_mb": 0.002, "data": [str(notes)], **more}
        return package.run(Options(**options))

    return pack


def run(folder, *words):
    command = [sys.executable, "-I", folder / "unpack.py", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={})


def test_parts_are_taken_apart_where_there_is_nothing_else(packed, tmp_path):
    manifest = packed()
    out, place = tmp_path / "out", tmp_path / "place"
    sizes = [path.stat().st_size for path in sorted(out.glob("part-*"))]
    assert len(sizes) > 2
    assert set(sizes[:-1]) == {2000}
    assert sizes[-1] <= 2000
    assert [row["bytes"] for row in manifest["parts"]] == sizes
    done = run(out, place, "toy", "device=cuda", "a b")
    assert done.returncode == 0, done.stderr
    words, notes, word = json.loads(done.stdout)
    assert words == ["toy", "device=cuda", "a b"]
    assert notes == "hello " * 1000
    assert word == "found"
    (site,) = (place / "env" / "lib").glob("python*/site-packages")
    assert (site / "toy" / "tool").stat().st_mode & 0o100
    assert not list(site.glob("**/scripts"))
    for part in out.glob("part-*"):
        part.unlink()
    assert run(out, place, "toy").returncode == 0  # a second call unpacks nothing


def test_links_travel_along_unless_they_lead_elsewhere(packed, tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "one.json").write_text("1")
    (tmp_path / "records" / "same.json").symlink_to("one.json")
    (tmp_path / "linked").symlink_to(tmp_path / "records")
    packed(data=[str(tmp_path / "notes.txt"), str(tmp_path / "linked")])
    done = run(tmp_path / "out", tmp_path / "place")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "place" / "data" / "linked" / "same.json").read_text() == "1"
    (tmp_path / "records" / "far.json").symlink_to(tmp_path / "notes.txt")
    with pytest.raises(PrunerError, match=r"far\.json is a link to .*notes\.txt"):
        packed(data=[str(tmp_path / "linked")], out=str(tmp_path / "other"))
    (tmp_path / "records" / "far.json").unlink()
    for name, there in (("gone", "nothing"), ("loop", "loop")):
        (tmp_path / "records" / name).symlink_to(there)
        with pytest.raises(PrunerError, match=f"{name} is a link to {there}"):
            packed(data=[str(tmp_path / "linked")], out=str(tmp_path / "other"))
        (tmp_path / "records" / name).unlink()


def test_a_model_that_is_trained_for_it_travels_along(packed, tmp_path, monkeypatch):
    begun = []

    def trained(words, log, *, place):
        begun.append(words)
        folder = next(word for word in words if word.startswith("outputs=")).partition("=")[2]
        name = next(word for word in words if word.startswith("run_id=")).partition("=")[2]
        (Path(folder) / "train" / name).mkdir(parents=True)
        (Path(folder) / "train" / name / BEST).write_text("weights")
        return Ended(code=0, line="{}")

    monkeypatch.setattr(package, "_check_model", lambda _: None)
    monkeypatch.setattr(package, "run_command", trained)
    manifest = packed(model=Model(records=str(tmp_path), platform="v100"))
    assert manifest["data"] == ["notes.txt", "v100.safetensors"]
    ((_, dash, module, command, *words),) = begun
    assert (dash, module) == ("-m", "pruner.cli")
    config = read_words(command, words).config  # a command that the door takes
    assert (config["platform"]["name"], config["data"]["root"]) == ("v100", str(tmp_path))
    place = tmp_path / "place"
    assert run(tmp_path / "out", place).returncode == 0
    assert (place / "data" / "v100.safetensors").read_text() == "weights"


def test_a_model_that_cannot_be_trained_packs_nothing(packed, tmp_path, monkeypatch):
    failed = Ended(code=2, line="error: no records for platform 'k80'")
    monkeypatch.setattr(package, "_check_model", lambda _: None)
    monkeypatch.setattr(package, "run_command", lambda *_, **__: failed)
    with pytest.raises(PrunerError, match=r"^model\.records=.*no records for platform 'k80'"):
        packed(model=Model(records=str(tmp_path), platform="k80"))
    assert list((tmp_path / "out").iterdir()) == []


def test_what_was_left_out_is_that_of_the_python_that_unpacks(packed, tmp_path, monkeypatch):
    monkeypatch.setattr(package, "gather", lambda _, folder: toy_wheel(folder) or ["numpy"])
    packed()
    assert run(tmp_path / "out", tmp_path / "place").returncode == 0
    python = tmp_path / "place" / "env" / "bin" / "python"
    code = "import numpy, toy; print(numpy.__file__); print(toy.__file__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, env={})
    theirs, ours = done.stdout.split()
    assert theirs.startswith(sysconfig.get_path("purelib"))
    assert ours.startswith(str(tmp_path / "place"))


def test_a_damaged_or_missing_part_is_told_before_anything_is_done(packed, tmp_path):
    packed()
    out, place = tmp_path / "out", tmp_path / "place"
    part = out / "part-001"
    content = bytearray(part.read_bytes())
    content[7] ^= 1
    part.write_bytes(content)
    done = run(out, place, "toy")
    assert done.returncode == 2
    assert "part-001 is damaged" in done.stderr
    part.unlink()
    assert "part-001 is missing" in run(out, place, "toy").stderr
    assert not place.exists()


def test_another_python_is_told(packed, tmp_path):
    packed(python="3.99")
    done = run(tmp_path / "out", tmp_path / "place")
    assert done.returncode == 2
    assert "made for Python 3.99" in done.stderr


def test_what_cannot_be_packed_is_told(packed, tmp_path):
    with pytest.raises(PrunerError, match=r"most_mb="):
        packed(most_mb=0.004)
    packed()
    with pytest.raises(PrunerError, match="name a new folder"):
        packed()
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    with pytest.raises(PrunerError, match=r"notes.txt is there twice"):
        packed(data=[str(tmp_path / "notes.txt")] * 2)
    with pytest.raises(PrunerError, match="nothing is not there"):
        packed(data=[str(tmp_path / "nothing")])


def test_a_platform_takes_wheels_of_older_ones():
    found = list(platforms("manylinux_2_28_x86_64"))
    assert found[0] == "manylinux_2_28_x86_64"
    assert "manylinux2014_x86_64" in found
    assert found[-1] == "manylinux1_x86_64"
    assert list(platforms("win_amd64")) == ["win_amd64"]
    words = target_words("3.12", "linux_x86_64")
    assert words[1:3] == ["--python-version", "3.12"]
    assert "cp312" in words
    assert words[-2:] == ["--platform", "linux_x86_64"]
    assert target_words(None, None) == ["--only-binary=:all:"]


def test_what_the_machine_has_is_left_out(tmp_path, monkeypatch):
    asked = []

    def pip(*words):
        asked.append(words)
        if words[0] == "install":
            rows = [("Torch", "2.9"), ("nvidia_cublas", "12"), ("numpy", "2.4"), ("pruner", "0")]
            report = {"install": [{"metadata": {"name": n, "version": v}} for n, v in rows]}
            Path(words[words.index("--report") + 1]).write_text(json.dumps(report))

    monkeypatch.setattr(package, "_pip", pip)
    monkeypatch.setattr(package, "own_wheel", lambda _, folder: toy_wheel(folder) or folder / "own")
    options = Options(out="", without=["torch", "nvidia-*"], pure=[], constraints=None)
    left_out = package.gather(options, tmp_path / "wheels")
    assert left_out == ["nvidia-cublas", "torch"]
    assert asked[0][-1] == f"{tmp_path / 'wheels' / 'own'}[tvm]"
    assert asked[-1][-1:] == ("numpy==2.4",)  # ours is there, the others the machine has


def test_a_folder_that_is_no_checkout_is_told(tmp_path):
    with pytest.raises(PrunerError, match="a package is made from one"):
        package.own_wheel(tmp_path, tmp_path)


# With them a package is gigabytes; a plan needs none of it, and programs that have it are there.
WITHOUT = "[torch,nvidia-*,triton,sympy,networkx]"


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
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


def unpacked(parts, python, place, *words):
    """What a command says there, of a Python that sees no index and nothing of this checkout."""
    alone = {"PATH": os.defpath, "HOME": str(place.parent), "PIP_NO_INDEX": "1"}
    done = subprocess.run(
        [python, "-I", parts / "unpack.py", place, *words],
        cwd=place.parent, env=alone, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_package_plans_in_an_empty_environment(parts, tmp_path):
    python, place = os.path.realpath(sys.executable), tmp_path / "place"
    words = ["platform=h200", "plan=true", f"out={tmp_path / 'results'}"]
    assert unpacked(parts, python, place, "experiments.gpu.run", *words)["steps"] > 20


@pytest.mark.tvm
@pytest.mark.slow
def test_a_package_compiles_and_runs_programs_with_the_torch_that_is_there(parts, tmp_path):
    place = tmp_path / "place"
    sizes = [f"workload.{name}=64" for name in "mnk"]
    found = unpacked(
        parts, sys.executable, place, "tune", "workload=matmul", *sizes, "platform=cpu",
        "budget.trials=2", "measure.min_repeat_ms=1", f"outputs={tmp_path / 'outputs'}",
    )  # fmt: skip
    assert (found["trials"], found["failed"]) == (2, 0)
    where = subprocess.run(
        [place / "env" / "bin" / "python", "-P", "-c", "import tvm, pruner\n"
         "print(tvm.__file__, pruner.__file__)"],
        cwd=tmp_path, env={"PATH": os.defpath}, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert all(path.startswith(str(place)) for path in where)
