"""Imports kept between commands: what decides their content, and what they leave behind."""

from dataclasses import replace

import pytest

from pruner.tune.networks import kept_imports
from pruner.tune.networks.kept_imports import KeptImports
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


def restored(kept, wanted, folder, *, keep=True):
    folder.mkdir()
    return kept.restore(wanted, folder, keep=keep), sorted(path.name for path in folder.iterdir())


def test_an_equal_request_gets_the_files_and_the_form_of_the_import(imported, tmp_path):
    kept = KeptImports(tmp_path / "cache")
    assert restored(kept, request(), tmp_path / "a") == ((False, None), [])
    kept.keep(request(), imported, "why not")
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
def test_another_request_gets_nothing(imported, tmp_path, other):
    kept = KeptImports(tmp_path / "cache")
    kept.keep(request(), imported, None)
    assert restored(kept, other, tmp_path / "a") == ((False, None), [])


def test_files_are_known_by_their_content(imported, tmp_path):
    kept, first, second = KeptImports(tmp_path / "cache"), tmp_path / "1.pt2", tmp_path / "2.pt2"
    first.write_bytes(b"weights")
    second.write_bytes(b"weights")
    kept.keep(request(str(first)), imported, None)
    (known, _), _ = restored(kept, request(str(second)), tmp_path / "a")
    assert known
    assert NetworkRequest.read(tmp_path / "a" / REQUEST).source.name == str(second)
    second.write_bytes(b"others")
    assert restored(kept, request(str(second)), tmp_path / "b") == ((False, None), [])


@pytest.mark.parametrize("name", ["package:factory", "net.onnx", "missing.pt2"])
def test_what_may_change_unnoticed_is_not_kept(imported, tmp_path, name):
    kept = KeptImports(tmp_path / "cache")
    kept.keep(request(name), imported, None)
    assert not (tmp_path / "cache").exists()
    KeptImports(None).keep(request(), imported, None)
    assert restored(KeptImports(None), request(), tmp_path / "a") == ((False, None), [])


def test_incomplete_imports_are_neither_kept_nor_restored(imported, tmp_path):
    kept = KeptImports(tmp_path / "cache")
    (imported / LOWERED).rename(imported / "away")  # too large, or only listed
    kept.keep(request(), imported, None)
    assert list((tmp_path / "cache").iterdir()) == []
    (imported / "away").rename(imported / LOWERED)
    kept.keep(request(), imported, None)
    (entry,) = (tmp_path / "cache").iterdir()
    (entry / WEIGHTS).unlink()
    assert not restored(kept, request(), tmp_path / "a")[0][0]


def test_the_entries_used_last_stay(imported, tmp_path, monkeypatch):
    sizes = [(imported / name).stat().st_size for name in (TASKS, LOWERED, WEIGHTS, REQUEST)]
    monkeypatch.setattr(kept_imports, "_MOST_BYTES", 2 * sum(sizes) + 50)
    kept = KeptImports(tmp_path / "cache")
    requests = [replace(request(), source=request(seed=seed).source) for seed in range(3)]
    for number, one in enumerate(requests):
        kept.keep(one, imported, None)
        if number == 1:
            assert kept.restore(requests[0], imported, keep=False)[0]
    assert [kept.restore(one, imported, keep=False)[0] for one in requests] == [True, False, True]
