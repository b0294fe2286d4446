"""The networks of experiments/breadth: KernelBench's problems at small sizes, and the table."""

import csv
import importlib.util
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from experiments.breadth import jobs, sources
from experiments.breadth import run as breadth
from experiments.breadth.sources import make, names
from pruner.errors import PrunerError
from pruner.processes import Reply

LINEAR = """
import torch
from torch import nn

batch_size = 1024
features, groups = 512 * 2, 8

class Model(nn.Module):
    def __init__(self, features, groups):
        super().__init__()
        self.norm = nn.GroupNorm(groups, features)

    def forward(self, x):
        return self.norm(x)

def get_inputs():
    return [torch.rand(batch_size, features)]

def get_init_inputs():
    return [features, groups]
"""


@pytest.fixture
def problems(tmp_path):
    for level in (1, 2, 3):
        (tmp_path / f"level{level}").mkdir()
    (tmp_path / "level1" / "10_norm.py").write_text(LINEAR)
    (tmp_path / "level1" / "9_fixed.py").write_text(
        LINEAR.replace("[features, groups]", "[8 * 128, groups]").replace("8 * 128", "8 * 8 * 16")
    )
    (tmp_path / "level2" / "1_broken.py").write_text(LINEAR.replace("self.norm(x)", "x @ x[:1]"))
    return tmp_path


def test_problems_come_in_the_order_of_their_numbers(problems):
    assert names("kernelbench", problems) == ["level1/9_fixed", "level1/10_norm", "level2/1_broken"]
    assert names("kernelbench", None) == []
    with pytest.raises(PrunerError, match="give the folder with level1"):
        names("kernelbench", problems / "level1")


def test_sizes_are_divided_as_far_as_they_fit(problems):
    network, (x,) = make("kernelbench", "level1/10_norm", problems)
    # 512 / 32 * 2 features, a batch of two, and the eight groups as they are
    assert (x.shape, network.norm.num_groups) == (torch.Size([2, 32]), 8)
    assert not network.training
    # 8 * 8 * 16 is not scaled, its factors are too small: only whole features fit
    network, (x,) = make("kernelbench", "level1/9_fixed", problems)
    assert x.shape[1] == network.norm.num_channels == 1024
    with pytest.raises(PrunerError, match="1_broken: no small size runs"):
        make("kernelbench", "level2/1_broken", problems)


def test_the_table_keeps_every_outcome_and_tries_nothing_twice(problems, tmp_path, monkeypatch):
    tried = []

    def call(self, job, source, name, *rest, timeout_s):
        tried.append(name)
        if name.endswith("broken"):
            return Reply(error="crash", message="SIGSEGV")
        return Reply(value={"outcome": "right", "error": 1e-7})

    monkeypatch.setattr("pruner.processes.Worker.call", call)
    options = breadth.Options(
        sources=["kernelbench"], kernelbench=str(problems), work=str(tmp_path), out=str(tmp_path)
    )
    alone = replace(options, networks=["norm"], work=str(tmp_path / "alone"))
    assert breadth.run(alone) == {"tried": 1, "right": 1}
    assert "nan" not in (tmp_path / "results.csv").read_text(encoding="utf-8")
    tried.clear()
    assert breadth.run(options) == {"tried": 3, "right": 2, "fault": 1}
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["outcome"] for row in rows] == ["right", "right", "fault"]
    assert "SIGSEGV" in rows[2]["reason"]
    breadth.run(options)
    assert len(tried) == 3
    options.again = True
    breadth.run(options)
    assert tried[3:] == ["level2/1_broken"]


def test_rows_of_other_networks_and_images_stay_but_no_failure_that_is_over(tmp_path, monkeypatch):
    """A failure has no image, so a later row of the network has another key."""
    answers = iter(
        [
            Reply(error="crash", message="SIGSEGV"),
            *(Reply(value={"outcome": "right", "image": n}) for n in (64, 96)),
        ]
    )
    monkeypatch.setattr("pruner.processes.Worker.call", lambda *_, **__: next(answers))
    monkeypatch.setattr(breadth, "names", lambda source, _: ["one"])
    other = "source,network,outcome,image,reason\nkernelbench,level1/1,right,,\n"
    (tmp_path / "results.csv").write_text(other)
    options = breadth.Options(sources=["timm"], image=64, work=str(tmp_path), out=str(tmp_path))
    breadth.run(options)
    breadth.run(replace(options, again=True))
    breadth.run(replace(options, image=96))
    with (tmp_path / "results.csv").open() as file:
        rows = [(row["network"], row["outcome"], row["image"]) for row in csv.DictReader(file)]
    assert rows == [("level1/1", "right", ""), ("one", "right", "64"), ("one", "right", "96")]


class Pixels(nn.Module):
    """A network of images, perhaps of one size alone."""

    def __init__(self, name):
        super().__init__()
        self.default_cfg = {"input_size": (3, 32, 32)}
        self.is_fixed = name == "fixed"

    def forward(self, x):
        return x.reshape(1, 3, 32 * 32) if self.is_fixed else x.mean((2, 3))


@pytest.mark.parametrize(("name", "side"), [("fixed", 32), ("free", 16)])
def test_images_are_smaller_where_a_network_takes_them(name, side, monkeypatch):
    monkeypatch.setitem(
        sys.modules, "timm", SimpleNamespace(create_model=lambda name, pretrained: Pixels(name))
    )
    network, (x,) = make("timm", name, None, 16)
    assert (x.shape[-1], network.training) == (side, False)
    monkeypatch.setattr(jobs, "unscheduled", lambda network, *_: network)
    row = jobs.attempt("timm", name, None, 16, None, draft=False, with_compile=False)
    assert (row["outcome"], row["image"]) == ("right", side)


def test_a_network_is_tried_once_for_each_size_of_image(tmp_path, monkeypatch):
    tried = []

    def call(self, job, source, name, folder, image, *rest, timeout_s):
        tried.append((source, image))
        return Reply(value={"outcome": "right", "error": 1e-7})

    monkeypatch.setattr("pruner.processes.Worker.call", call)
    monkeypatch.setattr(breadth, "names", lambda source, _: [f"of_{source}"])
    places = {"work": str(tmp_path), "out": str(tmp_path)}
    for image in (None, 64, 64, None):
        breadth.run(breadth.Options(sources=["timm", "transformers"], image=image, **places))
    assert tried == [("timm", None), ("transformers", None), ("timm", 64)]


# what an import of torchvision needs of its extension
TORCHVISION = 'import torch\n@torch.library.register_fake("torchvision::nms")\ndef nms(*_): ...\n'


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="is installed")
def test_torchvision_is_imported_without_its_extension(tmp_path, monkeypatch):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(TORCHVISION)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        sources._import_torchvision()
        assert "torchvision" in sys.modules
    finally:
        sys.modules.pop("torchvision", None)
        sources._SCHEMAS.clear()


def test_constant_weights_do_not_hide_the_layers_before_them():
    torch.manual_seed(0)
    head = nn.Linear(8, 2)
    nn.init.zeros_(head.weight)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), head).eval()
    network[0].weight.data *= 0.1
    sources._vary(network, torch.randn(4, 3, 3, 3))
    found = network(torch.randn(16, 3, 3, 3))
    assert found.std(0).min() > 0.05
    assert not any(module.training for module in network.modules())
