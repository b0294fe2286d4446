"""Unpack a package, make an environment, run a command; no network.

    python unpack.py DIR                                       unpack into DIR
    python unpack.py DIR experiments.gpu.run device=cuda minutes=25 out=RESULTS    and run a module
    python unpack.py DIR tune network=resnet18                 or a command of the project

This file lies in the folder of the parts and uses only Python's standard library. Call it with the
Python version that the package was made for, in an environment that has the packages left out.
DIR/env becomes the environment, DIR/data the packed data. A second call unpacks nothing. On an
error it prints one line and ends with exit code 2.
"""

import hashlib
import json
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MANIFEST, DONE = "package.json", "unpacked.json"
_DATA = ("purelib", "platlib")  # of a wheel: what belongs among the packages, too


class Wrong(Exception):
    """An error that the user sees as a single line."""


def check(folder: Path, manifest: dict[str, Any]) -> list[Path]:
    """Check the parts and the Python version; returns the paths."""
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if manifest["python"] != here:
        raise Wrong(f"made for Python {manifest['python']}, this is {here}")
    paths = []
    for row in manifest["parts"]:
        path = folder / row["name"]
        if not path.is_file():
            raise Wrong(f"{path} is missing")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256")
        if found.hexdigest() != row["sha256"]:
            raise Wrong(f"{path} is damaged (its SHA-256 differs); copy it again")
        paths.append(path)
    return paths


def unpack(folder: Path, place: Path) -> Path:
    """Unpack the parts in `folder` into `place`; the Python of its environment."""
    python = place / "env" / "bin" / "python"
    if (place / DONE).is_file():
        return python
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    paths = check(folder, manifest)
    place.mkdir(parents=True, exist_ok=True)
    with (
        subprocess.Popen(["cat", *paths], stdout=subprocess.PIPE) as joined,
        tarfile.open(fileobj=joined.stdout, mode="r|") as archive,
    ):
        archive.extractall(place, filter="data")
    venv.EnvBuilder(with_pip=False, clear=True, symlinks=True).create(place / "env")
    (site,) = (place / "env" / "lib").glob("python*/site-packages")
    (site / "place.pth").write_text(f"{place}\n", encoding="utf-8")  # experiments are no wheel
    if manifest["left_out"]:  # this Python has it, itself perhaps of an environment; ours is first
        theirs = dict.fromkeys(sysconfig.get_path(name) for name in _DATA)
        (site / "machine.pth").write_text("\n".join(theirs) + "\n", encoding="utf-8")
    for wheel in sorted((place / "wheels").glob("*.whl")):
        install(wheel, site)
    (place / DONE).write_text(json.dumps({"left_out": manifest["left_out"]}), encoding="utf-8")
    return python


def install(wheel: Path, site: Path) -> None:
    """Install a wheel's files into `site`; programs stay executable."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            first, _, rest = entry.filename.partition("/")
            if first.endswith(".data"):
                kind, _, rest = rest.partition("/")
                if kind not in _DATA:
                    continue
                entry.filename = rest
            if entry.is_dir() or not entry.filename:
                continue
            path = Path(archive.extract(entry, site))
            mode = entry.external_attr >> 16 & 0o777
            if mode:
                path.chmod(mode | 0o600)


def main(words: Sequence[str]) -> int:
    """Unpack, and run the command that is given."""
    if not words or words[0] in ("-h", "--help"):
        sys.stderr.write(f"{__doc__}\n")
        return 0 if words else 2
    folder, place = Path(__file__).resolve().parent, Path(words[0]).resolve()
    try:
        python = unpack(folder, place)
    except (Wrong, OSError, KeyError, ValueError, tarfile.TarError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if len(words) == 1:
        sys.stderr.write(f"{python} -m experiments.gpu.run --help\n")
        return 0
    called = [words[1]] if "." in words[1] else ["pruner.cli", words[1]]
    # -P: what lies in the folder of the call is not meant
    return subprocess.call([python, "-P", "-m", *called, *words[2:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
