"""Options of earlier versions: refused with the new name, and read in old run folders."""

import pytest

from pruner.cli.shared.known import read_words
from pruner.cli.shared.runs import read_config
from pruner.errors import PrunerError


@pytest.mark.parametrize(
    ("command", "word", "now"),
    [
        ("deploy", "beside=[eager]", "baselines"),
        ("tune", "measure.alone=false", "measure.exclusive"),
    ],
)
def test_an_option_of_before_is_refused_with_its_new_name(command, word, now):
    words = ["run=x"] if command == "deploy" else ["workload=matmul", "platform=cpu-avx2"]
    with pytest.raises(PrunerError, match=rf"is now called {now}$"):
        read_words(command, [*words, word])


@pytest.mark.parametrize("value", ["null", "true"])
def test_an_old_run_folder_is_read_with_the_new_names(tmp_path, value):
    path = tmp_path / "config.yaml"
    path.write_text(f"measure:\n  alone: {value}\n  lag: null\n", encoding="utf-8")
    assert read_config(path).measure == {
        "exclusive": {"null": None, "true": True}[value],
        "lag": None,
    }
