"""Features from the cache are those that were computed; what has changed is computed anew."""

import dataclasses
import json
import logging

import numpy as np
import pytest
import torch

from pruner import features
from pruner.data.quarantine import read_report
from pruner.data.root import RecordRoot
from pruner.models.analyzer.columns import NUM_DRAFT_COLUMNS
from pruner.models.programs import cache as module
from pruner.models.programs.dataset import load_programs
from pruner.models.programs.reading import ReadSpec
from tests.cli import toy_records


@pytest.fixture
def root(tmp_path):
    """Real operators whose steps the engine follows, with lines that are no records."""
    folder = tmp_path / "records"
    toy_records.write(folder, platforms=("v100",), shapes=toy_records.SHAPES[:3])
    path = folder / "measure_records" / "v100" / "matmul_64_64_64.json"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[0], "not json \x00 \u00e9", *lines]) + "\n")
    of_unknown = [toy_records.record((8, 8, 8), 2, 0), toy_records.record((8, 8, 8), 4, 0, 1, 2)]
    unknown = "\n".join(map(json.dumps, of_unknown)).replace("matmul_layer", "no_layer")
    (path.parent / "no_8_8_8.json").write_text(unknown + "\n")
    return RecordRoot(folder)


@pytest.fixture(autouse=True)
def toy_features(monkeypatch):
    from pruner.errors import UnsupportedProgram

    def featurize(workload_key, *args, **kwargs):
        if "no_layer" in workload_key:
            raise UnsupportedProgram("unknown-operator", "no_layer")
        return toy_records.featurize_records(workload_key, *args, **kwargs)

    monkeypatch.setattr(features, "featurize_records", featurize)


def load(root, tmp_path, **kwargs):
    kwargs.setdefault("cache", tmp_path / "cache")
    report = tmp_path / "quarantine.jsonl"
    return load_programs(root, ["v100"], ReadSpec(**kwargs), report=report)


def same(first, second):
    for field in dataclasses.fields(first):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if a is None:
            assert b is None, field.name
        elif isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype, field.name
            assert torch.equal(a, b), field.name
        elif isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b)
        elif field.name == "tokens":
            for name in ("structure", "place", "skeleton", "number"):
                assert torch.equal(getattr(a, name), getattr(b, name)), name
        else:
            assert a == b, field.name


def test_what_comes_from_the_cache_is_what_was_computed(root, tmp_path, caplog):
    bare = load(root, tmp_path, cache=None)
    told = read_report(tmp_path / "quarantine.jsonl")
    of_lines = {"duplicate", "malformed_json"}
    assert {entry.reason.value for entry in told} == of_lines | {"not_replayed"}
    assert bare.quarantined.keys() == of_lines  # programs are counted by the tally
    missed = load(root, tmp_path)
    caplog.clear()
    hit = load(root, tmp_path)
    assert [bare.num_cached, missed.num_cached, hit.num_cached] == [0, 0, 4]
    for other in (missed, hit):
        same(bare.store, other.store)
        assert other.tally == bare.tally
        assert other.quarantined == bare.quarantined
    assert read_report(tmp_path / "quarantine.jsonl") == told
    assert bare.tally.failures == {"unknown-operator": 1}
    assert "no_8_8_8.json left out (1 programs): unknown-operator: no_layer" in caplog.text


def test_a_changed_file_is_read_anew_and_the_others_are_not(root, tmp_path):
    load(root, tmp_path)
    path = root.path / "measure_records" / "v100" / "matmul_128_64_32.json"
    path.write_text(path.read_text().replace("1700000000", "1700000001"))
    assert load(root, tmp_path).num_cached == 3
    assert load(root, tmp_path).num_cached == 4  # the new entry took the place of the old one
    assert len(list((tmp_path / "cache").rglob("*.npz.zst"))) == 4


def test_files_that_define_workloads_count_once_they_are_whole(root, tmp_path):
    load(root, tmp_path)
    spaces = root.path / "design_spaces"
    spaces.mkdir()
    for name, cached in ((".a.json.gz.1.part", 4), ("a.json.gz", 0)):
        (spaces / name).touch()
        assert load(root, tmp_path).num_cached == cached


def test_other_settings_code_or_features_have_entries_of_their_own(root, tmp_path, monkeypatch):
    load(root, tmp_path)
    assert load(root, tmp_path, duplicates="keep").num_cached == 0
    assert load(root, tmp_path, dataflow="official").num_cached == 0
    assert load(root, tmp_path).num_cached == 4
    with monkeypatch.context() as patch:
        patch.setattr(features, "FEATURE_SET_VERSION", "another")
        assert load(root, tmp_path).num_cached == 0
    load(root, tmp_path)
    monkeypatch.setattr(module, "_code_digest", lambda: "other sources")
    assert load(root, tmp_path).num_cached == 0


def test_the_analyzer_and_failures_have_entries_of_their_own(root, tmp_path, monkeypatch):
    bare = load(root, tmp_path).store
    assert bare.draft is None
    assert torch.isfinite(bare.latency_s).all()
    missed, hit = (load(root, tmp_path, draft=True, failures=True) for _ in range(2))
    assert [missed.num_cached, hit.num_cached] == [0, 4]
    same(missed.store, hit.store)
    assert hit.tally == load(root, tmp_path).tally  # of measured programs alone
    assert hit.store.draft.shape == (hit.store.num_programs, NUM_DRAFT_COLUMNS)
    failed = torch.isinf(hit.store.latency_s)
    assert failed.sum() == 3  # one a file of real operators
    assert not hit.store.label[failed].any()
    assert torch.equal(hit.store.label[~failed], bare.label)
    assert torch.equal(hit.store.line[~failed], bare.line)
    monkeypatch.setattr(module, "_analyzer_digest", lambda: "other formulas")
    assert load(root, tmp_path, draft=True, failures=True).num_cached == 0
    assert load(root, tmp_path).num_cached == 4


def test_entries_with_the_analyzers_columns_serve_without_them(root, tmp_path):
    bare = load(root, tmp_path, cache=None)
    load(root, tmp_path, draft=True)
    hit = load(root, tmp_path)
    assert hit.num_cached == 3  # of 4: of a file without features the reasons may be the analyzer's
    assert hit.store.draft is None
    same(bare.store, hit.store)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_damaged_entry_is_told_in_one_line_and_computed_anew(root, tmp_path, caplog, damage):
    bare = load(root, tmp_path)
    path = next((tmp_path / "cache").rglob("matmul_64*.npz.zst"))
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 255
    broken = {"cut": content[: len(content) // 2], "empty": b"", "other": b"hello"}
    path.write_bytes(broken.get(damage, content))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        found = load(root, tmp_path)
    assert found.num_cached == 3
    same(bare.store, found.store)
    (line,) = [r.getMessage() for r in caplog.records if ": damaged, " in r.getMessage()]
    assert line.startswith(f"{path}: damaged, computed again")
    assert "\n" not in line
    assert load(root, tmp_path).num_cached == 4
