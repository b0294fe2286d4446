"""The Python of README.md and docs/ runs as it stands, with smaller budgets."""

import re

import numpy as np
import pytest

from tests.paths import REPOSITORY

FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SMALLER = {
    "Recipe()": "Recipe(epochs=1)",
    "trials=64": "trials=4",
    'effort="quick"': 'effort="draft"',
}


def blocks(document):
    return FENCE.findall((REPOSITORY / document).read_text(encoding="utf-8"))


def run(code, folder, monkeypatch, **names):
    monkeypatch.chdir(folder)
    (folder / "datasets").symlink_to(REPOSITORY / "datasets")
    for shown, small in SMALLER.items():
        code = code.replace(shown, small)
    exec(compile(code, "README.md", "exec"), names)  # our own text
    return names


def readme():
    return (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_the_first_screen_has_install_and_the_commands():
    commands = [line.split() for line in readme().splitlines()[:40] if line.startswith("    ")]
    starts = [words[:3] for words in commands if words[0] in ("make", "python", "pruner")]
    assert starts[0][:2] == ["make", "setup"]
    assert ["python", "tune.py", "network=resnet18"] in starts
    assert ["pruner", "deploy", "run=outputs/tune/RUN"] in starts


def test_the_readme_is_short_and_its_headers_are_too():
    assert len(readme().splitlines()) <= 100
    for header in re.findall(r"^(\|.*)\n\|---", readme(), re.MULTILINE):
        assert [cell for cell in header.strip("| ").split("|") if len(cell.split()) > 3] == []


def test_a_few_lines_of_python_do_it():
    (shown,) = blocks("README.md")
    assert len(shown.split("\n\n")[-1].splitlines()) <= 5
    _, train, *_ = blocks("docs/library.md")
    assert len(train.split("\n\n")[-1].splitlines()) <= 5
    assert "Recipe()" in train


def test_a_network_of_ones_own_is_a_function_as_the_page_has_it():
    from pruner.tune.networks.sizes import NetworkOptions

    names = {}
    exec(compile(blocks("docs/networks.md")[0], "networks.md", "exec"), names)
    network, (example,) = names["factory"](NetworkOptions(batch=3))
    assert network(example).shape == (3, 8)


@pytest.mark.slow
def test_records_are_read_and_a_model_is_fitted_and_judged(tmp_path, monkeypatch, capsys):
    names = run(blocks("docs/library.md")[1], tmp_path, monkeypatch)
    shown = float(capsys.readouterr().out.split()[-1])
    assert (
        shown
        == names["judge"](names["fitted"].ranker, names["programs"], names["split"]).metrics["top1"]
    )
    assert (tmp_path / "run" / "best.safetensors").is_file()


@pytest.mark.tvm
@pytest.mark.slow
def test_an_operator_is_tuned_and_called(tmp_path, monkeypatch, capsys):
    tune, call = blocks("docs/library.md")[3:5]
    names = run(tune + call, tmp_path, monkeypatch)
    assert 0 < names["tuned"].best_latency_s < 1
    assert (tmp_path / "tuned" / "trials.jsonl").is_file()
    assert np.allclose(names["c"].numpy(), names["a"] @ names["b"], rtol=1e-3)


def test_the_library_page_makes_a_recipe(tmp_path, monkeypatch):
    recipe = run(blocks("docs/library.md")[2], tmp_path, monkeypatch)["recipe"]
    assert (recipe.epochs, recipe.seed) == (8, 1)


@pytest.mark.tvm
@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/library.md"])
def test_a_module_is_compiled_as_the_page_has_it(page, tmp_path, monkeypatch):
    import torch

    model, x = torch.nn.Linear(8, 4).eval(), torch.randn(2, 8)
    names = run(blocks(page)[0], tmp_path, monkeypatch, model=model, x=x)
    with torch.no_grad():
        for found in (names["y"], *([names["same"](x)] if "same" in names else [])):
            torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)
    assert (tmp_path / "network.so").is_file()
