"""Progress where there is no terminal: lines now and then, with an estimate."""

from pruner.cli.shared import progress
from pruner.cli.shared.recipe_options import trees_counted


def test_a_log_gets_a_line_with_an_estimate_after_five_seconds(monkeypatch, capsys):
    clock = iter([0.0, 4.0, 10.0, 13.0, 40.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.counting("trees") as count:
        for done in (1, 2, 3, 10):
            count(done, 10)
    # 2 of 10 in 10 s: 8 more take 40 s; then silence for less than five seconds; then the end
    told = ["trees: 2 of 10, 5 s each, about 40 s left"]
    assert capsys.readouterr().err.splitlines() == told
    assert progress.rate(2.5) == "2.5/s"


def test_rounds_of_trees_open_a_display_only_once_there_is_one(monkeypatch):
    opened, real = [], progress.live_bar
    monkeypatch.setattr(progress, "live_bar", lambda: opened.append(1) or real())
    with trees_counted("trees"):
        pass
    assert not opened
    with trees_counted("trees") as grown:
        grown(1, 2)
        grown(2, 2)
    assert len(opened) == 1
