import pandas as pd


def test_every_record_line_has_a_row(command, trained, toy_root, tmp_path):
    data = (f"data.root={toy_root}", "platform=v100")
    checkpoint = f"checkpoint={trained('model=tensetmlp')[0]['run_dir']}"
    result, err = command("predict", checkpoint, *data, "out=s.csv").done
    table = pd.read_csv(tmp_path / "s.csv")
    columns = ["platform", "task", "line", "score", "rank", "latency_s"]
    assert list(table) == [*columns, "low_s", "predicted_s", "high_s"]
    assert table.eval("0 < low_s <= predicted_s <= high_s").all()
    assert len(table) == result["num_programs"] == 6 * 16  # the failed ones, too
    assert table.groupby("task")["rank"].min().eq(1).all()
    assert command("predict", checkpoint, *data, "seconds=false", "out=t.csv")[0] == 0
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "t.csv"), table[columns])
    assert command("predict", *data)[0] == 2  # no checkpoint
    assert "models.own=a.B: " in command("predict", checkpoint, *data, "models.own=[a.B]").refusal
