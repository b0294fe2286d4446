"""Files of torch.export that were written on another machine, against torch itself."""

import io
import json
import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import GetAttrKey, register_pytree_node

from pruner.errors import PrunerError
from pruner.tune.networks.signature import OUTPUTS
from pruner.tune.networks.source import NetworkSource, example_of, import_network, inputs_of
from tests.tune.networks.lowered import run

pytestmark = pytest.mark.tvm


class Devices(nn.Module):
    """Weights, a buffer, a constant, and operators that name their device."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.rand(4))
        self.shift = torch.rand(4)

    def forward(self, x):
        places = torch.arange(4, device=x.device).to(x.device, torch.float32)
        ones = torch.ones(4, dtype=torch.float64).to(x.device)
        return self.linear(x * self.scale + self.shift + places) + ones.float()


class Past:
    """A class that another package registers: a name for each list of tensors."""

    def __init__(self, keys, values):
        self.keys, self.values = keys, values


register_pytree_node(
    Past,
    lambda one: ([one.keys, one.values], [["keys", "values"], [None, 3]]),
    lambda parts, _: Past(*parts),
    serialized_type_name="a_package.Past",
    flatten_with_keys_fn=lambda one: (
        [(GetAttrKey("keys"), one.keys), (GetAttrKey("values"), one.values)],
        [["keys", "values"], [None, 3]],
    ),
)


class Remembers(nn.Module):
    def forward(self, x, past):
        keys = [one + x for one in past.keys]
        return Past(keys, past.values), x * 2


def edited(path, change):
    """Rewrite the entries of a file of torch.export.save."""
    entries = {}
    with zipfile.ZipFile(path) as file:
        for name in file.namelist():
            entries[name] = change(name, file.read(name))
    if isinstance(path, io.BytesIO):
        path.seek(0)
        path.truncate()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        for name, content in entries.items():
            file.writestr(name, content)


def on_a_gpu(name, content):
    """The entry as an export on a GPU writes it."""
    if name.endswith(".json"):
        text = json.dumps(json.loads(content))
        return text.replace('"type": "cpu", "index": null', '"type": "cuda", "index": 0').encode()
    if content[:2] == b"PK":  # example inputs, by torch.save: words are pickled with their length
        inner = io.BytesIO(content)
        word = lambda text: b"X" + len(text).to_bytes(4, "little") + text  # noqa: E731
        edited(inner, lambda _, part: part.replace(word(b"cpu"), word(b"cuda:0")))
        return inner.getvalue()
    return content


@pytest.fixture
def of_a_gpu(tmp_path):
    path = tmp_path / "net.pt2"
    with torch.no_grad():
        torch.export.save(torch.export.export(Devices().eval(), (torch.rand(2, 4),)), path)
    edited(path, on_a_gpu)
    return path


def test_a_program_of_a_gpu_becomes_that_of_the_cpu(of_a_gpu):
    with zipfile.ZipFile(of_a_gpu) as file:
        written = b"".join(map(file.read, file.namelist()))
    assert written.count(b'"cuda"') > 5
    assert b"cuda:0" in written
    given = NetworkSource(name=str(of_a_gpu))
    (x,) = inputs_of(given)
    found, wanted = run(import_network(given), [x])[0], Devices()(torch.from_numpy(x))
    np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-5)
    network, (args, _) = example_of(given)  # as it is called to compare
    torch.testing.assert_close(network(*args), wanted)
    if not torch.cuda.is_available():
        with pytest.raises(Exception, match=r"CUDA|deserializing"):  # torch is as it was
            torch.export.load(of_a_gpu)


def test_classes_of_other_packages_become_dicts_by_their_names(tmp_path, caplog):
    path = tmp_path / "net.pt2"
    past = Past([torch.ones(2), torch.rand(2)], [torch.rand(3)])
    torch.export.save(torch.export.export(Remembers(), (torch.rand(2), past)), path)
    edited(path, lambda _, part: part.replace(b"a_package.Past", b"b_package.Past"))
    given = NetworkSource(name=str(path))
    arrays, module = inputs_of(given), import_network(given)
    assert "its example inputs have other classes, values are drawn" in caplog.text
    wanted = [arrays[1] + arrays[0], arrays[2] + arrays[0], arrays[3], arrays[0] * 2]
    for mine, theirs in zip(run(module, arrays), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    past = {"dict": [["keys", {"list": [0, 1]}], ["values", {"list": [2]}]]}
    assert json.loads(module["main"].attrs[OUTPUTS]) == {"tuple": [past, 3]}


def test_the_reason_why_torch_cannot_read_a_file_is_in_the_message(tmp_path, capfd):
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(nn.ReLU(), (torch.rand(2),)), path)
    edited(path, lambda _, part: re.sub(rb'"major": ?\d+', b'"major": 99', part))
    with pytest.raises(PrunerError, match=r"cannot read it \(Serialized schema version .*99"):
        import_network(NetworkSource(name=str(path)))
    assert "Traceback" not in capfd.readouterr().err


class Runs:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("part", ["weights", "constants", "sample_inputs"])
def test_pickled_objects_and_libraries_of_a_file_are_not_loaded(part, tmp_path, caplog):
    """Weights and constants are refused; example inputs are drawn, a library is left out."""
    path, made = tmp_path / "net.pt2", tmp_path / "made"
    torch.export.save(torch.export.export(Devices().eval(), (torch.rand(2, 4),)), path)
    torch.save(Runs(made), buffer := io.BytesIO())

    def change(name, content):
        if f"/{part}/" not in name:
            return content
        if not name.endswith("_config.json"):
            return buffer.getvalue()
        content = re.sub(rb'"use_pickle": ?false', b'"use_pickle": true', content)
        return content.replace(b'"tensor_0"', b'"opaque_obj_0"')

    edited(path, change)
    with zipfile.ZipFile(path, "a") as file:
        root = file.namelist()[0].split("/")[0]
        file.writestr(f"{root}/data/constants/opaque_obj_0", pickle.dumps(Runs(made)))
        file.writestr(f"{root}/data/aotinductor/model/model.so", b"no library")
    if part == "sample_inputs":
        assert inputs_of(NetworkSource(name=str(path)))[0].shape == (2, 4)
        assert "values are drawn" in caplog.text
    else:
        with pytest.raises(PrunerError, match=r"cannot read it \((Weights only|it holds a pick)"):
            import_network(NetworkSource(name=str(path)))
    assert not made.exists()
