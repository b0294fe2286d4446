"""The journal of a run after a kill, and what its rows mean."""

from pruner.tune.run.journal import Journal, Trial, cut_incomplete_line, read_trials


def trial(number, costs_s, **changes):
    return Trial(**{
        "task": "t", "trial": number, "batch": 1, "position": number, "space": 0,
        "decisions": [4, 2], "costs_s": costs_s, "error": None, "message": "", "build_s": 0.1,
        "run_s": 0.2, "elapsed_s": 1.0, "timestamp": 0.0, **changes,
    })  # fmt: skip


def test_a_torn_line_is_cut_and_the_rest_is_kept(tmp_path):
    path = tmp_path / "trials.jsonl"
    journal = Journal(path)
    journal.append(trial(1, [1.0, 3.0]))
    journal.append(trial(2, [2.0]))
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"task": "t", "tri')
    again = Journal(path)
    assert [row.trial for row in again.rows] == [1, 2]
    assert again.rows[0].latency_s == 2.0
    again.append(trial(3, [1.0]))
    again.close()
    assert [row.trial for row in read_trials(path)] == [1, 2, 3]


def test_a_row_reads_back_as_it_was_written(tmp_path):
    rows = [
        trial(1, [0.1 + 0.2, 1e-300], extra={"rank": 3}),
        trial(2, [], error="timeout", message='line\nbreak "quoted" \u2028 ä'),
        trial(3, [], compiled_only=True),
    ]
    journal = Journal(tmp_path / "trials.jsonl")
    for row in rows:
        journal.append(row)
    journal.close()
    assert read_trials(tmp_path / "trials.jsonl") == rows


def test_only_what_ran_and_was_right_has_a_latency():
    assert trial(1, [1.0, 2.0, 6.0]).latency_s == 3.0
    assert trial(1, [1.0], error="wrong_result").latency_s == float("inf")
    assert trial(1, [], compiled_only=True).latency_s == float("inf")


def test_a_file_without_a_complete_line_becomes_empty(tmp_path):
    path = tmp_path / "trials.jsonl"
    cut_incomplete_line(path)
    assert not path.exists()
    path.write_bytes(b'{"task"')
    assert read_trials(path) == []
    assert path.read_bytes() == b'{"task"'  # another run may be writing it
    cut_incomplete_line(path)
    assert path.read_bytes() == b""
    path.write_bytes(b"{}\n")
    cut_incomplete_line(path)
    assert path.read_bytes() == b"{}\n"
