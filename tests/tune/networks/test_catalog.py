"""The networks are those of their papers; every name of the catalog becomes tasks."""

from itertools import product

import pytest
import torch

from pruner.tune.networks import transformer
from pruner.tune.networks.catalog import NETWORKS
from pruner.tune.networks.lowering import lower
from pruner.tune.networks.network_tasks import network_tasks
from pruner.tune.networks.sizes import CATALOG, NetworkOptions
from pruner.tune.networks.source import NetworkSource, import_network
from pruner.tune.networks.transformer import Attention, StackSizes
from tests.tune.networks.lowered import torch_error

# torchvision's models without auxiliary classifiers, and the published BERT and GPT-2.
PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "wide_resnet50_2": 68_883_240,
    "mobilenet_v2": 3_504_872,
    "densenet121": 7_978_856,
    "inception_v3": 23_834_568,
    "squeezenet1_1": 1_235_496,
    "vit_b_16": 86_567_656,
    "vit": (3 * 32 * 32 + 1) * 1024  # patches of 32 pixels as 1,024 numbers
    + (1 + 8 * 8 + 1) * 1024  # the class token; places of it and of 8 x 8 patches
    + 6 * (4 * (1024 + 1) * 1024 + (1024 + 1) * 2048 + (2048 + 1) * 1024 + 2 * 2 * 1024)
    + 2 * 1024
    + (1024 + 1) * 1000,
    "bert_base": 109_482_240,
    "gpt2": 124_439_808,
}
OUTPUTS = dict.fromkeys(("resnet18", "mobilenet_v2", "squeezenet1_1"), (2, 1000))
OUTPUTS["dcgan"] = (2, 3, 64, 64)


@pytest.mark.parametrize("name", PARAMETERS)
def test_as_many_parameters_as_published(name):
    with torch.device("meta"):
        network, _ = NETWORKS[name](NetworkOptions())
    assert sum(p.numel() for p in network.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_have_their_shapes_and_do_not_vanish(name):
    torch.manual_seed(0)
    network, inputs = NETWORKS[name](NetworkOptions(batch=2, image=64))
    with torch.no_grad():
        out = network(*inputs)
    assert out.shape == OUTPUTS[name]
    assert 1e-3 < out.abs().max() < 1e5


def test_attention_is_torchs():
    torch.manual_seed(0)
    ours = Attention(StackSizes(layers=1, heads=4, width=32, inner=1))
    theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    parts = [ours.query, ours.key, ours.value]
    theirs.in_proj_weight.data = torch.cat([p.weight.data for p in parts])
    theirs.in_proj_bias.data = torch.cat([p.bias.data for p in parts])
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    x, mask = torch.randn(2, 5, 32), transformer.causal_mask(5)
    wanted, _ = theirs(x, x, x, attn_mask=mask)
    torch.testing.assert_close(ours(x, mask=mask), wanted, rtol=1e-4, atol=1e-5)


def test_shared_keys_are_copied_keys():
    """Two key heads for four heads: the same as four heads of which two are equal."""
    torch.manual_seed(0)
    few = Attention(StackSizes(layers=1, heads=4, width=32, inner=1, key_value_heads=2))
    all_ = Attention(StackSizes(layers=1, heads=4, width=32, inner=1))
    for part in ("query", "out"):
        getattr(all_, part).load_state_dict(getattr(few, part).state_dict())
    for part, kind in product(("key", "value"), ("weight", "bias")):
        heads = getattr(getattr(few, part), kind).data.unflatten(0, (2, 8))
        getattr(getattr(all_, part), kind).data = heads.repeat_interleave(2, 0).flatten(0, 1)
    x = torch.randn(2, 5, 32)
    torch.testing.assert_close(few(x), all_(x))


def test_rotations_depend_on_distances_only():
    """Su et al., 2021: the product of two rotated vectors is a function of how far they are."""
    torch.manual_seed(0)
    cosine, sine = transformer.rotation(6, 8)
    query, key = torch.randn(8), torch.randn(8)

    def rotated(x, place):
        first, second = x.chunk(2)
        return x * cosine[place] + torch.cat([-second, first]) * sine[place]

    near = [rotated(query, i) @ rotated(key, i - 2) for i in (2, 3, 5)]
    torch.testing.assert_close(torch.stack(near), near[0].expand(3))
    assert abs(rotated(query, 3) @ rotated(key, 2) - near[0]) > 1e-3


def test_a_decoder_does_not_look_ahead():
    torch.manual_seed(0)
    sizes = StackSizes(layers=2, heads=2, width=16, inner=32, key_value_heads=1)
    network = transformer.Llama(sizes, 6, 40).eval()
    tokens = torch.randint(0, 40, (1, 6))
    changed = tokens.clone()
    changed[0, -1] = (tokens[0, -1] + 1) % 40
    with torch.no_grad():
        one, other = network(tokens), network(changed)
    torch.testing.assert_close(one[:, :-1], other[:, :-1])
    assert not torch.allclose(one[:, -1], other[:, -1])


def test_gated_layer_by_hand():
    layer = transformer.GatedFeedForward(1, 1)
    for part, value in ((layer.gate, 2.0), (layer.up, 3.0), (layer.down, 5.0)):
        part.weight.data.fill_(value)
    # x = 1: silu(2) = 2 / (1 + exp(-2)), times 3, times 5
    wanted = 2 / (1 + torch.exp(torch.tensor(-2.0))) * 3 * 5
    torch.testing.assert_close(layer(torch.ones(1, 1)), wanted.reshape(1, 1))


def test_positions_of_an_image_tell_every_pixel_apart():
    positions = transformer.sine_positions(4, 16)
    assert positions.shape == (16, 16)
    assert len(torch.unique(positions, dim=0)) == 16
    # row 1 of 4, first pair: angle 2 pi / 4, sine 1 and cosine 0
    torch.testing.assert_close(positions[0, :2], torch.tensor([1.0, 0.0]), atol=1e-6, rtol=0)


SMALL = {"image": 64, "length": 16, "layers": 1}
LARGER = {"inception_v3": {"image": 96}}  # its pools need 75 pixels


def small(name):
    sizes = SMALL | LARGER.get(name, {})
    return NetworkSource(name=name, options=NetworkOptions(**{n: sizes[n] for n in CATALOG[name]}))


@pytest.mark.tvm
@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_it_becomes_tasks(name, target):
    """All of the arithmetic is in products, convolutions among them where there are images."""
    tasks = network_tasks(lower(import_network(small(name)), target), target)
    assert sum(task.share for task in tasks) == pytest.approx(1.0)
    kinds = ("conv2d", "matmul", "dense")
    products = [task for task in tasks if any(kind in task.name for kind in kinds)]
    assert sum(task.share for task in products) > 0.8


@pytest.mark.tvm
@pytest.mark.slow
def test_detr_computes_what_torch_computes(target):
    """Twelve layers of attention over an image of a residual network, two outputs."""
    assert torch_error(small("detr"), lower(import_network(small("detr")), target)) < 1e-5
