"""The built wheel, alone in an empty environment and outside a checkout, is the whole command."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv

import pytest

SOURCES = ("pruner", "conf", "datasets", "checkpoints")
TINY = ("trainer.max_epochs=1", "trainer.accelerator=cpu", "batches.programs=8", "model=tensetmlp")


@pytest.fixture(scope="module")
def installed(repository, tmp_path_factory):
    """The `pruner` script of an environment that has the wheel, and ours only for libraries."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    sources.mkdir()
    for name in SOURCES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(repository / name, sources / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, sources)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, sources]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    into = ["--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run([*pip, *into], check=True)
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return python.with_name("pruner")


@pytest.fixture
def call(installed, tmp_path):
    def run(*arguments):
        done = subprocess.run(
            [installed, *arguments],
            cwd=tmp_path,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.slow
def test_the_installed_command_trains_on_the_bundled_records(call, tmp_path):
    out = call("train", "data.platform=cpu-avx2", "split=bundled", "run_id=mine", *TINY)
    result = json.loads(out.splitlines()[-1])
    assert 0 < result["top1"] <= 1
    assert (tmp_path / "outputs" / "train" / "mine" / "best.safetensors").is_file()


@pytest.mark.slow
def test_the_installed_command_explains_itself(call):
    listed = call("--help")
    assert "\n  train " in listed
    assert "\n  tune " in listed
    text = call("tune", "--help")
    assert "policy: adatune" in text
    assert "budget.trials=64" in text
