"""``pruner get`` from a repository on this machine; the committed list against the records."""

import gzip
import os
import re
import shutil
import subprocess
from hashlib import sha256

import pytest
import yaml

from pruner.data import public
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from tests.cli.test_import_logs import RECORD
from tests.paths import DATASETS, SHARED

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
FIRST = (RECORD % (2, 0.1)).encode()
SECOND = (RECORD % (4, 0.2)).encode() * 2  # a program twice: both lines must stay
LOGS = {"first.log": FIRST, "axis_(2, 3).log": SECOND, "other.log": b"of no interest\n"}
FILES = {
    "v100/a": (FIRST, ["first.log"]),
    "v100/b": (SECOND + FIRST, ["axis_(2, 3).log", "first.log"]),
}
GOT = "records/measure_records/v100"


def git(folder, *words):
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@x", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def hub(tmp_path):
    """A folder with one repository, whose second commit has no log any more."""
    clone = tmp_path / "hub/team/logs"
    (clone / "tvm logs").mkdir(parents=True)
    git(clone, "init", "--quiet")
    for name, content in LOGS.items():
        (clone / "tvm logs" / name).write_bytes(content)
    git(clone, "add", ".")
    git(clone, "commit", "--quiet", "-m", "logs")
    git(clone, "rm", "--quiet", "-r", "tvm logs")
    git(clone, "commit", "--quiet", "-m", "no logs")
    return tmp_path / "hub"


@pytest.fixture
def write_list(hub, monkeypatch, tmp_path):
    monkeypatch.setattr(public, "LISTS", tmp_path)
    commit = git(hub / "team/logs", "rev-parse", "HEAD~1")

    def write(files=FILES, commit=commit, **sums):
        source = {
            "repository": "team/logs",
            "commit": commit,
            "licence": "MIT",
            "folder": "tvm logs",
        }
        source["files"] = {
            name: [sums.get(name[-1], sha256(content).hexdigest()), *logs]
            for name, (content, logs) in files.items()
        }
        (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"sources": [source]}))

    write()
    return write


@pytest.fixture
def get(door, hub, write_list):
    def run(*words, source=hub):
        return door("get", "tiny", "out=records", f"source={source}", *words)

    return run


def test_records_are_the_logs_in_order_byte_for_byte(get, tmp_path):
    result, err = get().done
    assert result.pop("seconds") > 0
    assert result == {
        "set": "tiny", "records": 4, "platforms": {"v100": 4}, "files": 2, "kept": 0,
        "out": "records",
    }  # fmt: skip
    assert "MIT: 2 files to fetch" in err
    for name, (content, _) in FILES.items():
        path = tmp_path / "records/measure_records" / f"{name}.json.gz"
        assert gzip.decompress(path.read_bytes()) == content
        assert path.read_bytes()[4:8] == bytes(4)  # no time: the same bytes on every day
    assert {path.name for path in (tmp_path / "records").iterdir()} == {".lock", "measure_records"}
    found = list(RecordRoot(tmp_path / "records").read(Quarantine()))
    assert [len(task.steps) for task in found] == [1, 2]


def test_a_wrong_checksum_names_the_log_and_the_command_continues(get, write_list, tmp_path):
    write_list(b="0" * 64)
    err = get().refusal
    line = err.strip().splitlines()[-1]
    assert "axis_(2, 3).log + first.log: sha256" in line
    assert "remove records/.sources/team+logs and repeat" in line
    first = tmp_path / GOT / "a.json.gz"
    written = first.stat().st_mtime_ns
    assert not (tmp_path / GOT / "b.json.gz").exists()

    clone = tmp_path / "records/.sources/team+logs"
    assert sorted(path.name for path in (clone / "tvm logs").iterdir()) == sorted(LOGS)[:2]
    commit = git(clone, "rev-list", "-1", "FETCH_HEAD")
    objects = git(clone, "rev-list", "--objects", "--missing=print", commit).splitlines()
    assert sum(line.startswith("?") for line in objects) == 1  # the log that no file needs

    for lock in ("index.lock", "shallow.lock"):  # of a git that was killed
        (clone / ".git" / lock).touch()
    write_list()
    result, err = get().done
    assert (result["kept"], result["files"], result["records"]) == (1, 2, 4)
    assert first.stat().st_mtime_ns == written
    code, result, err = get(source="/nowhere")  # everything is there
    assert (code, result["kept"], result["records"]) == (0, 2, 4)


@pytest.mark.parametrize("content", [b"not gzip", gzip.compress(FIRST)[:-9], gzip.compress(SECOND)])
@pytest.mark.parametrize("name", ["a.json.gz", "mine.json"])
def test_other_records_are_left_alone(get, tmp_path, name, content):
    path = tmp_path / GOT / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    err = get().refusal
    assert f"{GOT}/{name}" in err
    assert "left alone" in err
    assert [*path.parent.iterdir()] == [path]
    assert path.read_bytes() == content


def test_settings_of_the_user_do_not_change_the_bytes(get, monkeypatch, tmp_path):
    (tmp_path / "attributes").write_text("* text=auto eol=crlf\n")
    (tmp_path / "gitconfig").write_text(
        f"[core]\nautocrlf = true\nattributesFile = {tmp_path}/attributes\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # as in a hook of another repository
    assert get().done
    assert not (tmp_path / "elsewhere").exists()


def test_no_git_connection_commit_or_log_is_one_line(get, write_list, monkeypatch, tmp_path):
    def refused(**words):
        code, _, err = get(**words)
        lines = err.strip().splitlines()
        assert code == 2
        assert len([line for line in lines if line.startswith("error")]) == 1
        return lines[-1]

    assert "check the connection" in refused(source="http://127.0.0.1:9")
    assert "check the connection" in refused(source="no-such-folder")
    write_list(commit="a" * 40)
    assert f"has no commit {'a' * 40} any more; give source=" in refused()
    write_list(files={"v100/c": (b"", ["gone.log"])})
    assert "team/logs has no tvm logs/gone.log" in refused()
    write_list()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git is not installed" in refused()


def test_a_set_and_a_folder_must_be_given(door):
    assert "known: gpu-logs" in door("get", "cpu-logs", "out=records")[2]
    for words in ((), ("gpu-logs",), ("out=records",)):
        assert "pruner get gpu-logs out=DIR" in door("get", *words).refusal


@pytest.fixture(scope="module")
def listed():
    return {
        name: content
        for source in public.load_sources("gpu-logs")
        for name, (content, *_) in source.files.items()
    }


@pytest.mark.parametrize("card", ["roller-gpu-logs", "bennu-a100-logs"])
def test_the_list_gives_the_sums_of_the_cards(listed, card):
    """A card has, of each platform, the sha256 of ``sha256sum``'s lines over all its files."""
    text = (DATASETS / "cards" / f"{card}.md").read_text()
    for platform in {"roller-gpu-logs": ["k80", "v100", "mi50"]}.get(card, ["a100"]):
        of_it = {
            f"{n.partition('/')[2]}.json": s for n, s in listed.items() if n.startswith(platform)
        }
        names = sorted(of_it, key=lambda name: os.fsencode(f"{name}.gz"))
        lines = "".join(f"{of_it[name]}  {name}\n" for name in names)
        assert re.search(rf"\| {sha256(lines.encode()).hexdigest()} \|", text), platform
        assert re.search(rf"\| {platform} \| {len(of_it)} \|", text)


def test_the_list_has_the_records_of_the_committed_numbers(listed):
    folder = SHARED / "data/gpu-records/measure_records"
    if not folder.is_dir():
        pytest.skip("the public GPU logs are absent: no ../shared/data/gpu-records")
    assert {f"{name}.json.gz" for name in listed} == {
        path.relative_to(folder).as_posix() for path in folder.glob("*/*")
    }
    for name, expected in listed.items():
        content = gzip.decompress((folder / f"{name}.json.gz").read_bytes())
        assert sha256(content).hexdigest() == expected, name
