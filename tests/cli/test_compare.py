"""Results of runs side by side."""

import json

from omegaconf import OmegaConf

from pruner.cli.shared.output import as_table


def run_folder(path, metrics, options):
    path.mkdir(parents=True)
    (path / "metrics.json").write_text(json.dumps(metrics))
    OmegaConf.save(OmegaConf.create(options), path / "config.yaml")
    return path


def test_numbers_and_differing_options_stand_beside_each_other_of_finished_runs(command, tmp_path):
    one = run_folder(
        tmp_path / "a=1", {"top1": 0.5, "random": {"top1": 0.25}}, {"seed": 0, "model": {"w": 1}}
    )
    two = run_folder(tmp_path / "b", {"top1": 0.75, "name": "x"}, {"seed": 0, "model": {"w": 2}})
    assert "at least two" in command("compare", two).refusal
    result, err = command("compare", f"runs=['{one}','{two}']").done
    assert result["results"] == [
        {"result": "top1", "a=1": 0.5, "b": 0.75},
        {"result": "random.top1", "a=1": 0.25, "b": None},
    ]
    assert result["options"] == [{"option": "model.w", "a=1": 1, "b": 2}]
    assert "model.w  1    2" in err
    one = run_folder(tmp_path / "a", {"top1": 0.5}, {})
    assert "nothing: no metrics.json there" in command("compare", one, tmp_path / "nothing").refusal
    assert "given twice" in command("compare", one, f"{one}/").refusal


def test_a_table_has_columns_of_one_width():
    rows = [{"a": 1, "b": 0.123456}, {"a": "long", "c": None}]
    assert as_table(rows) == "a     b       c\n1     0.1235\nlong"
