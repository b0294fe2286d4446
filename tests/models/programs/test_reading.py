"""What has no features is told with file, line and reason, also where it comes from the cache."""

from pruner.data.quarantine import read_report
from pruner.models.programs.dataset import load_programs
from pruner.models.programs.reading import ReadSpec
from tests.models.programs.contradicted import contradicted


def test_a_program_that_cannot_be_replayed_has_file_line_and_reason(tmp_path):
    root = contradicted(tmp_path / "records")
    (file,) = root.task_files(["cpu-avx2"])
    report = tmp_path / "quarantine.jsonl"
    for cached, cache in ((0, None), (0, tmp_path / "cache"), (1, tmp_path / "cache")):
        found = load_programs(root, ["cpu-avx2"], ReadSpec(cache=cache), report=report)
        assert found.num_cached == cached
        assert found.tally.failures == {"contradicting-extent": 1}
        assert found.quarantined == {}
        (entry,) = read_report(report)
        assert (entry.file, entry.line, entry.reason) == (str(file.path), 2, "not_replayed")
        assert entry.detail == "contradicting-extent"
        report.unlink()


def test_a_file_that_cannot_be_read_is_set_aside(tmp_path):
    root = contradicted(tmp_path / "records")
    (file,) = root.task_files(["cpu-avx2"])
    file.path.with_name("unreadable.json").symlink_to("/proc/self/mem")
    for cached, cache in ((0, None), (0, tmp_path / "cache"), (1, tmp_path / "cache")):
        found = load_programs(root, ["cpu-avx2"], ReadSpec(cache=cache))
        assert (found.num_cached, len(found.store.keys)) == (cached, 1)
        assert found.quarantined == {"unreadable_file": 1}
