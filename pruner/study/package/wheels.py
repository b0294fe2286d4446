"""Wheels of this project and of what it needs, from whatever index pip is set up for."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from pruner.errors import PrunerError
from pruner.progress import Tell

SOURCES = ("pruner", "conf", "datasets")
BESIDE = ("pyproject.toml", "README.md", "LICENSE")
_MANYLINUX = re.compile(r"manylinux_2_(\d+)_(\w+)")
_OLD = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}  # glibc 2.x: the older name
_LINES = 5  # of pip's words, in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where wheels are for; None: as here. ``python`` is 3.11, ``platform``
    manylinux_2_28_x86_64."""

    python: str | None = None
    platform: str | None = None

    @property
    def words(self) -> list[str]:
        """For pip."""
        words = ["--only-binary=:all:"]
        if self.python is not None:
            short = self.python.replace(".", "")
            words += ["--python-version", self.python, "--implementation", "cp"]
            words += ["--abi", f"cp{short}", "--abi", "abi3", "--abi", "none"]
        for name in () if self.platform is None else platforms(self.platform):
            words += ["--platform", name]
        return words


def platforms(name: str) -> Iterator[str]:
    """The platform, and those whose wheels run on it too, which pip does not know by itself.

    >>> list(platforms("manylinux_2_6_x86_64"))
    ['manylinux_2_6_x86_64', 'manylinux_2_5_x86_64', 'manylinux1_x86_64']
    """
    found = _MANYLINUX.fullmatch(name)
    if found is None:
        yield name
        return
    for minor in range(int(found[1]), 4, -1):
        yield f"manylinux_2_{minor}_{found[2]}"
        if minor in _OLD:
            yield f"{_OLD[minor]}_{found[2]}"


def gather(
    sources: Path,
    folder: Path,
    *,
    target: Target,
    extras: Sequence[str],
    without: Sequence[str],
    pure: Sequence[str],
    constraints: Path | None,
    tell: Tell,
) -> list[str]:
    """Put all wheels into `folder`; names of the packages that were left out.

    ``without``: names, as patterns, of packages that the other machine has. ``pure``: packages that
    are offered as sources only and hold no compiled code; their wheels are made here.

    Raises:
        PrunerError: no checkout in `sources`, or pip could not do it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tell("making the wheel of this project")
    own = own_wheel(sources, folder)
    limits = [] if constraints is None else ["-c", str(constraints)]
    for name in pure:
        tell(f"making a wheel of {name}")
        _pip(["wheel", "--no-deps", "-w", str(folder), *limits, name])
    wanted = f"{own}[{','.join(extras)}]" if extras else str(own)
    tell(f"looking up the requirements of {wanted.rpartition('/')[2]}")
    found = _resolved(wanted, folder, target, limits)
    here = {_plain(path.name.partition("-")[0]) for path in folder.glob("*.whl")}
    left_out = sorted(n for n in found if n not in here and any(fnmatch(n, p) for p in without))
    needed = [f"{n}=={v}" for n, v in sorted(found.items()) if n not in (*here, *left_out)]
    tell(f"downloading {len(needed)} packages")
    if needed:
        _pip(["download", "--no-deps", "-d", str(folder), *target.words, *needed])
    return left_out


def own_wheel(sources: Path, folder: Path) -> Path:
    """The wheel of this project. Raises `PrunerError` where `sources` is no checkout of it."""
    if not (sources / BESIDE[0]).is_file():
        raise PrunerError(f"{sources}: no checkout of this project; a package is made from one")
    with tempfile.TemporaryDirectory() as place:  # what an earlier build left is not in it
        for name in SOURCES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(sources / name, Path(place) / name, symlinks=True, ignore=ignored)
        for name in BESIDE:
            shutil.copy(sources / name, place)
        _pip(["wheel", "--no-deps", "-w", str(folder), place])
    (wheel,) = folder.glob("pruner-*.whl")
    return wheel


def _resolved(wanted: str, folder: Path, target: Target, limits: Sequence[str]) -> dict[str, str]:
    """Names and versions of a requirement and all that it needs; nothing is installed."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.json"
        words = ["install", "--dry-run", "--ignore-installed", "--report", str(report)]
        words += ["--target", place, "--find-links", str(folder), *target.words, *limits, wanted]
        _pip(words)
        rows = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {_plain(row["metadata"]["name"]): row["metadata"]["version"] for row in rows}


def _plain(name: str) -> str:
    """As package indices compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _pip(words: Sequence[str]) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        told = [line for line in done.stderr.splitlines() if "rror" in line] or ["no reason given"]
        raise PrunerError(f"pip {words[0]}: {' '.join(told[-_LINES:])[:500]}")
