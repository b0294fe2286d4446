"""Fetch public record sets by git, at the commits of a committed list.

``datasets/sources/<set>.yaml`` has for each record file its sha256 and its logs. A record file is
these logs, one behind the other, unchanged: everybody has the same records in the same order.
"""

import os
import subprocess
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from gzip import decompress
from hashlib import sha256
from pathlib import Path

import yaml

from pruner.data.importing import compress
from pruner.data.root import FOLDER
from pruner.errors import DataError, PrunerError
from pruner.paths import datasets_folder

LISTS = datasets_folder() / "sources"
# As `git rev-parse --local-env-vars` lists them.
_OTHER_REPOSITORY = {
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_CONFIG", "GIT_CONFIG_COUNT",
    "GIT_CONFIG_PARAMETERS", "GIT_DIR", "GIT_GRAFT_FILE", "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE", "GIT_INTERNAL_SUPER_PREFIX", "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_REPLACE_REF_BASE", "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
}  # fmt: skip
_SETTINGS = {
    # The user's own settings must not change the bytes of a log, or run a program.
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.attributesFile": os.devnull,
    "core.hooksPath": os.devnull,
    "core.sparseCheckout": "true",
    "maintenance.auto": "false",
    "gc.auto": "0",
    "http.lowSpeedLimit": "1000",  # bytes per second; below it for a minute, the fetch ends
    "http.lowSpeedTime": "60",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """A repository at one commit, and the record files that its logs make.

    `files`: platform and task (``k80/relu_128_168_42_42``) to the sha256, then the logs in
    `folder`.
    """

    repository: str
    commit: str
    licence: str
    folder: str
    files: Mapping[str, tuple[str, ...]]

    def fetch(self, names: list[str], clone: Path, host: str) -> None:
        """Check out log files from `host` into `clone`; raises PrunerError if git fails."""
        local = Path(host).is_dir()
        url = f"{Path(host).absolute() if local else host.rstrip('/')}/{self.repository}"
        clone.mkdir(parents=True, exist_ok=True)
        for lock in (clone / ".git").rglob("*.lock"):  # of a git that was killed
            lock.unlink()
        _git(clone, "init", "--quiet", "--template=")
        _git(clone, "config", "remote.origin.url", url)
        # Unlike a server, a clone on this machine sends every file unless it is started like this.
        sender = "git -c uploadpack.allowFilter=true upload-pack" if local else "git-upload-pack"
        _git(clone, "config", "remote.origin.uploadpack", sender)
        logs = [f"/{self.folder}/{log}\n" for name in names for log in self.files[name][1:]]
        (clone / ".git" / "info").mkdir(exist_ok=True)
        (clone / ".git" / "info" / "sparse-checkout").write_text("".join(logs), encoding="utf-8")
        shallow = ("--depth=1", "--filter=blob:none", "--no-tags", "--quiet")
        try:
            _git(clone, "fetch", *shallow, "origin", self.commit)
            _git(clone, "read-tree", "--reset", "-u", self.commit)  # fetches the logs
        except _GitError as error:
            if "not our ref" in str(error) or "unadvertised object" in str(error):
                raise PrunerError(
                    f"{url} has no commit {self.commit} any more; give source=, a place with a "
                    f"fork or a clone that has it, as SOURCE/{self.repository}"
                ) from error
            raise PrunerError(
                f"{url}: {error}; check the connection, or give source=FOLDER with a clone as "
                f"FOLDER/{self.repository}. The same command continues; if it does not, remove "
                f"{clone}"
            ) from error

    def write(self, name: str, clone: Path, out: Path) -> int:
        """Write a record file, return its number of records; raises DataError for other records."""
        expected, *logs = self.files[name]
        for log in logs:
            if not (clone / self.folder / log).is_file():
                raise DataError(f"{self.repository} has no {self.folder}/{log} at {self.commit}")
        records = b"".join((clone / self.folder / log).read_bytes() for log in logs)
        if (found := sha256(records).hexdigest()) != expected:
            raise DataError(
                f"{self.repository}: {' + '.join(logs)}: sha256 {found}, but the list has "
                f"{expected}; remove {clone} and repeat the command, or give another source="
            )
        plain, path = clone.with_name("records.json"), record_file(out, name)
        plain.write_bytes(records)
        path.parent.mkdir(parents=True, exist_ok=True)
        compress(plain).replace(path)
        return len(records.splitlines())


def load_sources(name: str) -> list[LogSource]:
    """Load the list of a set; raises `PrunerError` for an unknown set."""
    known = sorted(path.stem for path in LISTS.glob("*.yaml"))
    if name not in known:
        raise PrunerError(f"{name} is no public record set; known: {', '.join(known)}")
    entries = yaml.safe_load((LISTS / f"{name}.yaml").read_text(encoding="utf-8"))["sources"]
    return [LogSource(**entry) for entry in entries]


def present_files(sources: list[LogSource], out: Path) -> dict[str, int]:
    """Count the records of present files; raises DataError for files of another set."""
    folder = out / FOLDER
    names = {f"{name}.json.gz" for source in sources for name in source.files}
    for platform in sorted({name.partition("/")[0] for name in names}):
        for path in sorted((folder / platform).glob("[!.]*")):
            if f"{platform}/{path.name}" not in names:
                raise DataError(f"{path} is not of this set and is left alone; choose another out")
    return {
        name: num_records
        for source in sources
        for name, (expected, *_) in source.files.items()
        if (num_records := _count(record_file(out, name), expected)) is not None
    }


def record_file(out: Path, name: str) -> Path:
    """Return the path of a record file in a data root."""
    return out / FOLDER / f"{name}.json.gz"


def _count(path: Path, expected: str) -> int | None:
    try:
        records = decompress(path.read_bytes())
        if sha256(records).hexdigest() == expected:
            return len(records.splitlines())
    except FileNotFoundError:
        return None
    except (EOFError, zlib.error, OSError):  # a damaged file
        pass
    raise DataError(
        f"{path} differs from the list and is left alone; remove it and repeat the command, or "
        "choose another out"
    )


class _GitError(PrunerError):
    """The first error line of a git command."""


def _git(folder: Path, *words: str) -> None:
    settings = [word for pair in _SETTINGS.items() for word in ("-c", "=".join(pair))]
    inherited = {name: text for name, text in os.environ.items() if name not in _OTHER_REPOSITORY}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *settings, *words],
            env=inherited | {"GIT_TERMINAL_PROMPT": "0", "GIT_ATTR_NOSYSTEM": "1", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError as error:
        raise PrunerError("git is not installed; install git 2.25 or newer") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith(("fatal", "error"))]
        raise _GitError(f"git {words[0]}: {(lines or [done.stderr.strip()[-200:]])[0]}")
