"""The separate virtual environment of Ansor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pruner.errors import PrunerError
from pruner.paths import datasets_folder, sources_folder

REQUIREMENTS = datasets_folder() / "ansor-requirements.txt"


class MissingAnsor(PrunerError):
    """The Ansor environment does not exist or cannot import TVM 0.19."""

    def __init__(self, folder: str, detail: str) -> None:
        super().__init__(
            f"no working Ansor environment in {folder} ({detail}); "
            "run: pruner collect setup=true (or: make ansor-env)"
        )
        self.folder = folder
        self.detail = detail

    def __reduce__(self) -> tuple[type[MissingAnsor], tuple[str, str]]:
        """Pickle by constructor arguments."""
        return type(self), (self.folder, self.detail)


def interpreter(folder: Path) -> Path:
    """Return the Python of the environment.

    Raises:
        MissingAnsor: it does not exist, or has no TVM with auto_scheduler.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        raise MissingAnsor(str(folder), "not there")
    # in a process of its own: both environments have a package called tvm
    probe = "import tvm.auto_scheduler, xgboost"
    done = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MissingAnsor(str(folder), (done.stderr.strip().splitlines() or ["crashed"])[-1])
    return python


def install(folder: Path) -> None:
    """Create the environment with exact versions from datasets/ansor-requirements.txt.

    Raises:
        PrunerError: pip failed; its own output has gone to stderr.
    """
    commands = [
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS)],
    ]
    for command in commands:
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
            raise PrunerError(f"could not install Ansor into {folder}; see the messages above")


def child_environment(cores: int) -> dict[str, str]:
    """Return a child's environment: its threads, and the path of our package.

    TVM would pin its threads to fixed cores; unpinned, the system can move them away from a core
    that other work is using.
    """
    threads = {"TVM_NUM_THREADS": str(cores), "TVM_BIND_THREADS": "0"}
    return {**os.environ, **threads, "PYTHONPATH": str(sources_folder())}
