"""The Python of README.md and docs/ runs as it stands, with smaller budgets."""

import re

import pytest

from tests.places import REPOSITORY

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


def test_the_first_screen_tunes_a_network():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    commands = [line.split() for line in text.splitlines()[:15] if line.startswith("    python ")]
    assert [words[:3] for words in commands] == [
        ["python", "tune.py", "network=resnet18"],
        ["python", "deploy.py", "run=outputs/tune/RUN"],
    ]


def test_ten_lines_of_python_do_it():
    first, second = blocks("README.md")
    assert len(first.split("\n\n")[-1].splitlines()) <= 5
    assert "Recipe()" in first
    assert "trials=64" in second


def test_a_network_of_ones_own_is_a_function_as_the_page_has_it():
    from pruner.tune.networks.sizes import NetworkOptions

    names = {}
    exec(compile(blocks("docs/networks.md")[0], "networks.md", "exec"), names)
    network, (example,) = names["factory"](NetworkOptions(batch=3))
    assert network(example).shape == (3, 8)


def test_records_are_read_and_a_model_is_fitted_and_judged(tmp_path, monkeypatch, capsys):
    names = run(blocks("README.md")[0], tmp_path, monkeypatch)
    shown = float(capsys.readouterr().out.split()[-1])
    assert (
        shown
        == names["judge"](names["fitted"].ranker, names["programs"], names["split"]).metrics["top1"]
    )
    assert (tmp_path / "run" / "best.pt").is_file()


@pytest.mark.tvm
@pytest.mark.slow
def test_an_operator_is_tuned(tmp_path, monkeypatch, capsys):
    names = run(blocks("README.md")[1], tmp_path, monkeypatch)
    assert 0 < names["tuned"].best_latency_s < 1
    assert (tmp_path / "tuned" / "trials.jsonl").is_file()


def test_the_library_page_makes_a_recipe(tmp_path, monkeypatch):
    recipe = run(blocks("docs/library.md")[1], tmp_path, monkeypatch)["recipe"]
    assert (recipe.epochs, recipe.seed) == (8, 1)


@pytest.mark.tvm
@pytest.mark.slow
def test_the_library_page_compiles_a_module(tmp_path, monkeypatch):
    import torch

    model, x = torch.nn.Linear(8, 4).eval(), torch.randn(2, 8)
    given = {"model": model, "x": x}
    names = run(blocks("docs/library.md")[0], tmp_path, monkeypatch, **given)
    with torch.no_grad():
        for found in (names["y"], names["same"](x)):
            torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)
    assert (tmp_path / "network.so").is_file()
