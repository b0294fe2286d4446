"""Imports kept between commands: what decides their content, and what they leave behind."""

import os
from functools import partial

import pytest

from pruner.processes import MEMORY, JobFailed, Reply
from pruner.tune.networks import extraction
from pruner.tune.networks.extraction import KeptImport
from pruner.tune.networks.lowering import NetworkFormat
from pruner.tune.networks.request import LOWERED, REQUEST, TASKS, WEIGHTS, NetworkRequest
from pruner.tune.networks.sizes import NetworkOptions
from pruner.tune.networks.source import NetworkSource

NHWC = NetworkFormat(layout="NHWC")


def request(name="resnet18", seed=0, kind="llvm", form=NHWC):
    source = NetworkSource(name=name, options=NetworkOptions(), seed=seed)
    return NetworkRequest(source=source, target={"kind": kind}, form=form)


@pytest.fixture
def imported(tmp_path):
    """A run folder with the files of an import, which took another form than the requested one."""
    place = tmp_path / "first"
    place.mkdir()
    for name in (TASKS, LOWERED, WEIGHTS):
        (place / name).write_text(f"of {name}")
    request(form=NHWC.plain).save(place / REQUEST)
    return place


@pytest.fixture
def kept(tmp_path):
    return partial(KeptImport, tmp_path / "cache")


@pytest.fixture
def entry(kept, imported, tmp_path):
    """The folder of an import that was kept."""
    kept(request()).keep(imported, None)
    (found,) = (tmp_path / "cache").iterdir()
    return found


def restored(kept, wanted, folder, *, keep=True):
    folder.mkdir()
    return kept(wanted).restore(folder, keep=keep), sorted(path.name for path in folder.iterdir())


def test_an_equal_request_gets_the_files_and_the_form_of_the_import(kept, imported, tmp_path):
    assert restored(kept, request(), tmp_path / "a") == ((False, None), [])
    kept(request()).keep(imported, "why not")
    found, files = restored(kept, request(), tmp_path / "b")
    assert found == (True, "why not")
    assert files == sorted([TASKS, LOWERED, WEIGHTS, REQUEST])
    assert (tmp_path / "b" / WEIGHTS).read_text() == f"of {WEIGHTS}"
    assert NetworkRequest.read(tmp_path / "b" / REQUEST).form == NHWC.plain
    assert restored(kept, request(), tmp_path / "c", keep=False)[1] == sorted([TASKS, REQUEST])


@pytest.mark.parametrize(
    "other",
    [request(seed=1), request(kind="cuda"), request(form=NHWC.plain), request("mobilenet_v2")],
)
@pytest.mark.usefixtures("entry")
def test_another_request_gets_nothing(kept, tmp_path, other):
    assert restored(kept, other, tmp_path / "a") == ((False, None), [])


def test_files_are_known_by_their_content(kept, imported, tmp_path):
    first, second = tmp_path / "1.pt2", tmp_path / "2.pt2"
    first.write_bytes(b"weights")
    second.write_bytes(b"weights")
    kept(request(str(first))).keep(imported, None)
    (known, _), _ = restored(kept, request(str(second)), tmp_path / "a")
    assert known
    assert NetworkRequest.read(tmp_path / "a" / REQUEST).source.name == str(second)
    second.write_bytes(b"others")
    assert restored(kept, request(str(second)), tmp_path / "b") == ((False, None), [])


@pytest.mark.parametrize("name", ["package:factory", "net.onnx", "missing.pt2"])
def test_what_may_change_unnoticed_is_not_kept(kept, imported, tmp_path, name):
    kept(request(name)).keep(imported, None)
    assert not (tmp_path / "cache").exists()
    KeptImport(None, request()).keep(imported, None)
    assert restored(partial(KeptImport, None), request(), tmp_path / "a") == ((False, None), [])


def test_incomplete_imports_are_neither_kept_nor_restored(kept, imported, entry, tmp_path):
    (imported / LOWERED).unlink()  # too large, or only listed
    kept(request(seed=1)).keep(imported, None)
    assert list((tmp_path / "cache").iterdir()) == [entry]
    (entry / WEIGHTS).unlink()
    assert not restored(kept, request(), tmp_path / "a")[0][0]


@pytest.mark.parametrize("damage", ["{", '{"source": null}', ""])
@pytest.mark.parametrize("name", [REQUEST, TASKS, LOWERED, "about.json"])
def test_a_damaged_entry_is_replaced(kept, imported, entry, tmp_path, name, damage):
    (entry / name).write_text(damage)
    again = kept(request())
    assert not restored(kept, request(), tmp_path / "a")[0][0]
    assert not (tmp_path / "a" / TASKS).exists()
    again.keep(imported, None)
    assert restored(kept, request(), tmp_path / "b")[0][0]


def test_a_file_that_changes_during_the_import_is_not_kept(imported, tmp_path):
    path = tmp_path / "1.pt2"
    path.write_bytes(b"before")
    one = KeptImport(tmp_path / "cache", request(str(path)))
    path.write_bytes(b"after")
    one.keep(imported, None)
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("entry")
def test_tasks_come_last_and_whole(kept, tmp_path, monkeypatch):
    copy = extraction.shutil.copyfile

    def killed(source, to):
        if source.name == TASKS:
            raise KeyboardInterrupt
        copy(source, to)

    monkeypatch.setattr(extraction.shutil, "copyfile", killed)
    with pytest.raises(KeyboardInterrupt):
        restored(kept, request(), tmp_path / "a")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(
        [REQUEST, LOWERED, WEIGHTS]
    )


def test_a_large_import_drops_no_others(kept, imported, entry, tmp_path, monkeypatch):
    size = sum(path.stat().st_size for path in entry.iterdir())
    monkeypatch.setattr(extraction, "_MOST_BYTES", size + 1)
    (imported / WEIGHTS).write_text("of weights" * 200)
    kept(request(seed=1)).keep(imported, None)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [entry.name]


def test_folders_of_killed_commands_are_removed_when_old(imported, tmp_path):
    (tmp_path / "cache" / ".git").mkdir(parents=True)
    os.utime(tmp_path / "cache" / ".git", (0, 0))  # of the user's
    for name, time_s in ((".import-old", 0), (".import-new", None)):
        folder = tmp_path / "cache" / name
        folder.mkdir(parents=True)
        (folder / WEIGHTS).write_text("a part")
        os.utime(folder, None if time_s is None else (time_s, time_s))
    KeptImport(tmp_path / "cache", request()).keep(imported, None)
    left = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert left[:2] == [".git", ".import-new"]
    assert len(left) == 3


@pytest.mark.parametrize(
    ("ends", "stays"),
    [(None, True), ("a pass refuses", True), ("MemoryError", False), (MEMORY, False)],
)
def test_a_layout_is_kept_unless_memory_decided_it(tmp_path, monkeypatch, ends, stays):
    failures = [Reply(error=MEMORY, message="std::bad_alloc")] if ends == MEMORY else []

    def ask(*arguments, **_):
        if failures:
            raise JobFailed("no", failures.pop())
        for name in (LOWERED, WEIGHTS):
            (arguments[2] / name).write_text(f"of {name}")
        (arguments[2] / TASKS).write_text("[]")
        return None if ends == MEMORY else ends

    monkeypatch.setattr(extraction, "ask", ask)
    monkeypatch.setattr(extraction, "read_tasks", lambda path: [])
    wanted = request()
    extraction.extract_tasks(
        wanted.source, '{"kind": "llvm"}', tmp_path / "run", NHWC, keep=True, cache=tmp_path / "c"
    )
    assert (tmp_path / "c").exists() == stays


def test_the_entries_used_last_stay(kept, imported, monkeypatch):
    sizes = [(imported / name).stat().st_size for name in (TASKS, LOWERED, WEIGHTS, REQUEST)]
    monkeypatch.setattr(extraction, "_MOST_BYTES", int(2.5 * sum(sizes)) + 300)
    requests = [request(seed=seed) for seed in range(3)]
    for number, one in enumerate(requests):
        kept(one).keep(imported, None)
        if number == 1:
            assert kept(requests[0]).restore(imported, keep=False)[0]
    assert [kept(one).restore(imported, keep=False)[0] for one in requests] == [True, False, True]
