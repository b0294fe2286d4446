"""Channels last where TVM's rules for it fail, and the other layout where they cannot be helped."""

import json
from math import prod
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from pruner.errors import PrunerError
from pruner.processes import JobFailed, Reply
from pruner.tune.networks import extraction, lowering
from pruner.tune.networks.lowering import formed
from pruner.tune.networks.network_tasks import network_tasks
from pruner.tune.networks.operators.program import from_exported
from pruner.tune.networks.rewrites.constant_folding import fold_views
from pruner.tune.networks.rewrites.layout import channels_last
from pruner.tune.networks.rewrites.operators import is_constant, operator_name
from pruner.tune.networks.source import NetworkSource, import_network
from pruner.tune.tvm_import import inside, load_tvm
from tests.tune.networks.lowered import imported, torch_error
from tests.tune.targets import target_of

pytestmark = pytest.mark.tvm
LAST = lowering.NetworkFormat(layout="NHWC")


class Awkward(nn.Module):
    """Odd dimensions, a stack, bounds of integers, a norm, transposed convolutions by groups."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 3, stride=2, groups=4)
        self.wide = nn.ConvTranspose2d(8, 4, 1, stride=3, output_padding=2)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x):
        x = self.first(x)
        both = torch.stack([x, 2 * x], 2).sum(-3)
        pixel = x.mean((-2, -1), keepdim=True).squeeze(-1)
        counts = (9 * x).to(torch.int64).clamp(min=-2).float() + (9 * x).int().clamp(-3, 5)
        views = pixel, counts, x.permute(0, -1, 1, -2), x.squeeze()
        return self.up(both), self.wide(self.norm(x)), *views


def awkward():
    torch.manual_seed(0)
    return Awkward().eval(), (torch.randn(1, 3, 6, 7),)


def outputs_error(factory, form):
    """The largest relative error of all outputs against torch."""
    source = NetworkSource(name=f"{__name__}:{factory.__name__}")
    lowered, got, reason = lowering.lower_somehow(import_network(source), target_of(1), form)
    return torch_error(source, lowered), got, reason


def test_awkward_operators_keep_their_meaning_and_no_convolutions_need_no_layout():
    error, form, reason = outputs_error(awkward, LAST)
    assert error < 1e-5
    assert (form, reason) == (LAST, None)
    module = imported("encoder")
    assert channels_last(module) is module


def test_a_norm_of_groups_keeps_channels_last():
    """Images are transposed at both ends, and between them only their means."""
    layers = [nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 4, 3)]
    program = torch.export.export(nn.Sequential(*layers), (torch.randn(1, 3, 9, 9),))
    main = formed(from_exported(program), LAST)["main"]
    found = inside(main.body, load_tvm().relax.Call)
    moved = [one.ty.shape for one in found if operator_name(one) == "relax.permute_dims"]
    sizes = sorted(prod(int(size) for size in shape) for shape in moved)
    assert sizes[-2:] == [4 * 5 * 5, 3 * 9 * 9]
    assert all(size <= 8 for size in sizes[:-2])


def test_where_the_layout_cannot_be_had_the_other_one_is_taken(monkeypatch):
    fails = Mock(side_effect=RuntimeError("std::bad_alloc\nand a trace"))
    monkeypatch.setattr(lowering, "channels_last", fails)
    error, form, reason = outputs_error(awkward, LAST)
    assert error < 1e-5
    assert (form.layout, reason) == ("NCHW", "RuntimeError: std::bad_alloc")


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_crashed_import_is_tried_in_the_other_layout(layout, tmp_path, monkeypatch):
    """Where the process has ended, too; the request then says what was built."""
    asked, lines = [], []

    def ask(*_, **__):
        form = json.loads((tmp_path / extraction.REQUEST).read_text())["form"]
        asked.append(form["layout"])
        if form["layout"] == layout:
            reply = Reply(error="illegal_access", message="SIGSEGV: a trace")
            raise JobFailed("SIGSEGV; the log", reply)
        (tmp_path / extraction.TASKS).write_text("[]")

    monkeypatch.setattr(extraction, "ask", ask)
    source, form = NetworkSource(name="a:b"), lowering.NetworkFormat(layout=layout)
    if layout == "NCHW":
        with pytest.raises(PrunerError, match=r"network=a:b: its import failed; .*SIGSEGV"):
            extraction.extract_tasks(source, "{}", tmp_path, form, log=lines.append)
        assert asked == ["NCHW"]
    else:
        assert not extraction.extract_tasks(source, "{}", tmp_path, form, log=lines.append)
        assert asked == ["NHWC", "NCHW"]
        assert lines == ["a-b: NHWC cannot be had, NCHW float32 is taken (SIGSEGV: a trace)"]


def test_ends_without_a_mistake_say_what_to_do(tmp_path, monkeypatch):
    ends = {
        "killed": "was killed, as systems do where memory runs out; free memory",
        "out_of_memory": "ran out of memory; free memory, or take a smaller network",
        "timeout": "took more than 3600 s; loops .* are written out in it: take fewer",
    }
    for error, told in ends.items():
        failed = JobFailed("x; the log", Reply(error=error, message="x"))
        monkeypatch.setattr(extraction, "ask", Mock(side_effect=failed))
        with pytest.raises(PrunerError, match=f"network=a:b: its import {told}"):
            extraction.extract_tasks(NetworkSource(name="a:b"), "{}", tmp_path)


def test_an_operator_that_cannot_be_lowered_is_named():
    relax, tvm = load_tvm().relax, load_tvm().tvm
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((3, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = builder.emit(relax.op.nn.relu(x))
            out = builder.emit_output(relax.op.flip(value, 0))
        builder.emit_func_output(out)

    def refuse(module):
        if "flip" in module.script():
            raise ValueError("no rule\ntrace")
        return module

    step = tvm.transform.module_pass(lambda module, _: refuse(module), opt_level=0, name="Pass")
    with pytest.raises(PrunerError, match=r"lower relax\.flip of .*\(Pass: ValueError: no rule"):
        lowering._stepped(step, builder.get())


def test_biases_of_channels_last_are_reshaped_and_transposed_once():
    """Else `FoldConstant` compiles an expression for each, before the network is tuned."""

    def views(module):
        found = []
        call = load_tvm().relax.Call
        load_tvm().ffi.structural_walk(module["main"].body, (call, found.append))
        names = [operator_name(one) for one in found if one.args and is_constant(one.args[0])]
        return [name for name in names if name in ("relax.reshape", "relax.permute_dims")]

    module = formed(imported("channels"), LAST)
    assert views(module)
    assert views(fold_views(module)) == []


def test_a_folded_scalar_has_no_axis():
    relax = load_tvm().relax
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            scalar = relax.op.reshape(relax.const(np.ones(1, "float32")), ())
            out = builder.emit_output(scalar)
        builder.emit_func_output(out)
    folded = fold_views(builder.get())["main"]
    assert "R.reshape" not in folded.script()
    assert list(folded.body.body.ty.shape) == []


def test_folded_biases_change_no_task(target, monkeypatch):
    """Records of earlier runs apply: TVM folds the same constants, later."""

    def tasks():
        module = lowering.lower(imported("channels"), target, LAST)
        return {(task.key, task.weight) for task in network_tasks(module, target)}

    found = tasks()
    monkeypatch.setattr(lowering, "fold_views", lambda module: module)
    assert found == tasks()
