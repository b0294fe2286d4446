"""Pack project, dependencies and data into small files, for offline machines.

    python -m experiments.gpu.package out=DIR             everything, for a machine like this
    python -m experiments.gpu.package out=DIR 'without=[torch,nvidia-*,triton]'   it has torch
    python -m experiments.gpu.package out=DIR python=3.11 platform=manylinux_2_28_x86_64
    python -m experiments.gpu.package out=DIR data=[outputs/train/RUN] most_mb=2000
    python -m experiments.gpu.package out=DIR model.records=ROOT      with a model of a K80

There, with the Python that it was made for and no index:

    python DIR/unpack.py PLACE experiments.gpu.run device=cuda minutes=25 out=RESULTS
    python DIR/unpack.py PLACE experiments.gpu.run ... checkpoint=PLACE/data/k80.safetensors

Wheels come from the index that pip is set up for; DIR/package.json lists them, with the SHA-256 of
every part.

python, platform: of that machine; null: as here. extras: of pyproject.toml. without: packages that
the machine already has. pure: pure-Python packages without a wheel, built here. constraints: file
with exact versions; null: the newest versions. data: files and folders to pack into data/. model:
trained by train.py on the records of a platform and packed as data/PLATFORM.safetensors. part_mb,
most_mb: maximum size of a file, and of all together.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from experiments.common.comparison import quoted, run_command, started
from experiments.gpu import unpack
from pruner.cli.shared.output import say
from pruner.cli.shared.script import run_script
from pruner.data.root import RecordRoot
from pruner.errors import DataError, PrunerError
from pruner.files import write_json

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
UNPACK = "unpack.py"
SOURCES = ("pruner", "conf", "datasets", "checkpoints")
BESIDE = ("pyproject.toml", "README.md", "LICENSE")
_MANYLINUX = re.compile(r"manylinux_2_(\d+)_(\w+)")
_OLD = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}  # glibc 2.x: the older name
_CHECKPOINT = "best.safetensors"  # of train.py
_MB = 1_000_000


@dataclass(kw_only=True)
class Model:
    """The model to pack: data root of its records (None: no model), platform."""

    records: str | None = None
    platform: str = "k80"


@dataclass(kw_only=True)
class Options:
    """Words of the command line, which the script's docstring describes."""

    out: str = MISSING
    python: str | None = None
    platform: str | None = None
    extras: list[str] = field(default_factory=lambda: ["tvm"])
    without: list[str] = field(default_factory=list)
    pure: list[str] = field(default_factory=lambda: ["antlr4-python3-runtime"])
    constraints: str | None = "constraints.txt"
    data: list[str] = field(default_factory=list)
    model: Model = field(default_factory=Model)
    part_mb: float = 58.0
    most_mb: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("part_mb", self.part_mb), ("most_mb", self.most_mb)):
            if value is not None and value < 1e-3:
                raise PrunerError(f"{name}={value:g}: it must be a number above 0.001")


def run(options: Options) -> dict[str, Any]:
    """Write the parts, ``unpack.py`` and ``package.json`` into a new folder; return the content.

    Raises PrunerError: the folder is not empty, two things to pack have one name, one is missing or
    has links that lead elsewhere, all is too large, or a step fails.
    """
    start, out = time.monotonic(), Path(options.out)
    if not options.out or (out.exists() and any(out.iterdir())):
        raise PrunerError(f"out={options.out}: name a new folder")
    contents = _data(options)
    _check_model(options.model)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        if options.model.records is not None:
            name = f"data/{options.model.platform}.safetensors"
            contents[name] = train(options.model, Path(place))
        wheels = Path(place) / "wheels"
        left_out = gather(options, wheels)
        say("writing parts")
        archive = Path(place) / "package.tar"
        needed = {f"experiments/{name}": HERE.parent / name for name in ("common", "gpu")}
        pack(archive, {"wheels": wheels, **needed, **contents})
        parts = split(archive, out, options)
        packages = sorted(path.name for path in wheels.iterdir())
    manifest = {
        "python": options.python or f"{sys.version_info[0]}.{sys.version_info[1]}",
        "platform": options.platform,
        "left_out": left_out,
        "wheels": packages,
        "data": sorted(name.removeprefix("data/") for name in contents),
        "parts": parts,
    }
    shutil.copy(HERE / UNPACK, out / UNPACK)
    write_json(out / unpack.MANIFEST, manifest, indent=1)  # last: with it the package is complete
    say(f"{len(parts)} parts, {sum(row['bytes'] for row in parts) / _MB:.0f} MB")
    if left_out:
        say(f"the machine must have: {', '.join(left_out)}")
    words = [f"python {out.name}/{UNPACK} PLACE experiments.gpu.run device=cuda minutes=25 out=DIR"]
    if options.model.records is not None:
        words.append(f"checkpoint=PLACE/data/{options.model.platform}.safetensors")
    say(f"there: {' '.join(words)}")
    return {**manifest, "out": str(out), "seconds": round(time.monotonic() - start, 1)}


def _data(options: Options) -> dict[str, Path]:
    """Files and folders by archive name; links must not leave a folder."""
    model = options.model
    taken = {f"{model.platform}.safetensors"} if model.records is not None else set()
    found: dict[str, Path] = {}
    for given in map(Path, options.data):
        path = given.resolve()
        name = path.name if given.name in ("", "..") else given.name
        if not path.exists() or name in taken:
            reason = "there twice" if path.exists() else "not there"
            raise PrunerError(f"data={given}: {name} is {reason}")
        for link in filter(Path.is_symlink, path.rglob("*")):
            lost = link.readlink().is_absolute() or not link.exists()  # a loop exists nowhere too
            if lost or not link.resolve().is_relative_to(path):
                raise PrunerError(
                    f"data={given}: {link} is a link to {link.readlink()}, which would not be "
                    "there; put the file itself in its place"
                )
        taken.add(name)
        found[f"data/{name}"] = path
    return found


def _check_model(model: Model) -> None:
    if model.records is not None:
        try:
            RecordRoot(Path(model.records)).task_files(model.platform)
        except DataError as error:
            raise DataError(f"model.records: {error}") from error


def train(model: Model, place: Path) -> Path:
    """Train by defaults into `place`; raises PrunerError with train.py's reason."""
    say(f"training on the records of {model.platform}, some minutes")
    records = Path(str(model.records)).resolve()
    words = ["train", f"platform={model.platform}", f"data.root={quoted(records)}"]
    words += [f"outputs={quoted(place)}", f"run_id={model.platform}"]
    ended = run_command(started(words, ROOT), place / "train.log", place=ROOT)
    found = place / "train" / model.platform / _CHECKPOINT
    if not ended.well or not found.is_file():
        raise PrunerError(f"model.records={model.records}: {ended.line}")
    return found


def gather(options: Options, folder: Path) -> list[str]:
    """Put the wheels of project and requirements into `folder`; return those left out.

    Raises PrunerError: no checkout here, no file of constraints, or pip failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    limits = [] if options.constraints is None else ["-c", str(ROOT / options.constraints)]
    if limits and not Path(limits[1]).is_file():
        raise PrunerError(f"constraints={options.constraints}: no such file in {ROOT}")
    say("making the wheel of this project")
    own = own_wheel(ROOT, folder)
    for name in options.pure:
        say(f"making a wheel of {name}")
        _pip("wheel", "--no-deps", "-w", str(folder), *limits, name)
    wanted = f"{own}[{','.join(options.extras)}]" if options.extras else str(own)
    say(f"looking up the requirements of {wanted.rpartition('/')[2]}")
    target = target_words(options.python, options.platform)
    with tempfile.TemporaryDirectory() as place:  # nothing is installed
        report = Path(place) / "report.json"
        _pip("install", "--dry-run", "--ignore-installed", "--report", str(report), "--target",
             place, "--find-links", str(folder), *target, *limits, wanted)  # fmt: skip
        rows = json.loads(report.read_text(encoding="utf-8"))["install"]
    found = {_plain(row["metadata"]["name"]): row["metadata"]["version"] for row in rows}
    here = {_plain(path.name.partition("-")[0]) for path in folder.glob("*.whl")}
    left_out = sorted(
        name
        for name in found
        if name not in here and any(fnmatch(name, pattern) for pattern in options.without)
    )
    needed = [f"{n}=={v}" for n, v in sorted(found.items()) if n not in (*here, *left_out)]
    say(f"downloading {len(needed)} packages")
    if needed:
        _pip("download", "--no-deps", "-d", str(folder), *target, *needed)
    return left_out


def own_wheel(sources: Path, folder: Path) -> Path:
    """Build this project's wheel; raises `PrunerError` without a checkout."""
    if not (sources / BESIDE[0]).is_file():
        raise PrunerError(f"{sources}: no checkout of this project; a package is made from one")
    with tempfile.TemporaryDirectory() as place:  # what an earlier build left is not in it
        ignored = shutil.ignore_patterns("__pycache__")
        for name in SOURCES:
            shutil.copytree(sources / name, Path(place) / name, symlinks=True, ignore=ignored)
        for name in BESIDE:
            shutil.copy(sources / name, place)
        _pip("wheel", "--no-deps", "-w", str(folder), place)
    (wheel,) = folder.glob("pruner-*.whl")
    return wheel


def target_words(python: str | None, platform: str | None) -> list[str]:
    """Return pip's options for wheels of a Python and a platform."""
    words = ["--only-binary=:all:"]
    if python is not None:
        abis = (f"cp{python.replace('.', '')}", "abi3", "none")
        words += ["--python-version", python, "--implementation", "cp"]
        words += [word for abi in abis for word in ("--abi", abi)]
    for name in () if platform is None else platforms(platform):
        words += ["--platform", name]
    return words


def platforms(name: str) -> Iterator[str]:
    """Yield the platform and older platforms whose wheels run on it.

    pip needs all of them.

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


def _plain(name: str) -> str:
    """A package name as package indices compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        told = [line for line in done.stderr.splitlines() if "rror" in line] or ["no reason given"]
        raise PrunerError(f"pip {words[0]}: {' '.join(told[-5:])[:500]}")


def pack(archive: Path, contents: Mapping[str, Path]) -> None:
    """Write files and folders into an archive without names of users."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return None if "__pycache__" in entry.name else entry

    with tarfile.open(archive, "w") as file:
        for name, path in contents.items():
            file.add(path, arcname=name, filter=plain)


def split(archive: Path, out: Path, options: Options) -> Sequence[Mapping[str, Any]]:
    """Cut a file into parts: a row each; raises PrunerError above ``most_mb``."""
    if options.most_mb is not None and archive.stat().st_size > options.most_mb * _MB:
        raise PrunerError(
            f"more than {options.most_mb:g} MB; leave something out (without=, data=) or allow "
            "more (most_mb=)"
        )
    rows: list[Mapping[str, Any]] = []
    with archive.open("rb") as file:
        while piece := file.read(int(options.part_mb * _MB)):
            name = f"part-{len(rows):03d}"
            (out / name).write_bytes(piece)
            digest = hashlib.sha256(piece).hexdigest()
            rows.append({"name": name, "bytes": len(piece), "sha256": digest})
    return rows


if __name__ == "__main__":
    run_script(Options, run, __doc__)
