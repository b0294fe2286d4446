"""Networks that people bring: of KernelBench, torchvision, timm and transformers.

None of them is a dependency: a source that is not installed gives no network. All have random
weights. Problems of KernelBench are scaled down, so that a CPU runs each in a fraction of a second.
Images of torchvision and timm may be made smaller, too, where a network takes other sizes.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pruner.errors import PrunerError

Case = tuple[nn.Module, tuple[Any, ...]]

DIVISORS = (32, 16, 8, 4, 2, 1)  # of KernelBench's sizes; a problem gets the first that runs
LEAST_SCALED = 32  # smaller numbers are kernels, strides, groups and heads
OF_IMAGES = ("torchvision", "timm")
MOST_NUMBERS = {"level1": 2**23, "level2": 2**23, "level3": 2**28}  # in inputs and weights
BATCH = 2  # where a problem runs with it

TORCHVISION = [
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet",
    "inception_v3", "maxvit_t", "mnasnet1_0", "mobilenet_v2", "mobilenet_v3_large",
    "mobilenet_v3_small", "regnet_y_400mf", "resnet18", "resnext50_32x4d", "shufflenet_v2_x1_0",
    "squeezenet1_0", "swin_t", "swin_v2_t", "vgg11_bn", "vit_b_16", "wide_resnet50_2",
]  # fmt: skip
TIMM = [
    "coatnet_0_rw_224", "convmixer_768_32", "convnextv2_atto", "cspresnet50",
    "deit_tiny_patch16_224", "efficientformer_l1", "efficientnet_lite0", "fastvit_t8", "gernet_s",
    "ghostnet_100", "hardcorenas_a", "lcnet_050", "levit_128s", "mixer_s32_224", "mobilevit_xxs",
    "poolformer_s12", "rexnet_100", "repvgg_a0", "resmlp_12_224", "tinynet_e",
]  # fmt: skip
# Classes of transformers and the configuration of a small model of each, in its own words.
_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 128, "vocab_size": 500}  # fmt: skip
_FEW_HEADS = {**_SMALL, "num_key_value_heads": 2}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "Albert": {**_SMALL, "embedding_size": 32},
    "Bert": _SMALL,
    "Deberta": _SMALL,
    "DistilBert": {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 500},
    "Electra": _SMALL,
    "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 500},
    "GPTNeoX": _SMALL,
    "Gemma": {**_FEW_HEADS, "head_dim": 16, "pad_token_id": 0},
    "Llama": _FEW_HEADS,
    "MPNet": _SMALL,
    "Mistral": _FEW_HEADS,
    "Phi": _SMALL,
    "Qwen2": _FEW_HEADS,
    "Roberta": _SMALL,
}


def names(source: str, kernelbench: Path | None) -> list[str]:
    """List the networks of a source; none where it is not at hand."""
    if source == "kernelbench":
        return [] if kernelbench is None else _problems(kernelbench)
    if importlib.util.find_spec(source) is None:
        return []
    return {"torchvision": TORCHVISION, "timm": TIMM, "transformers": list(TRANSFORMERS)}[source]


def _problems(folder: Path) -> list[str]:
    found = [path for level in (1, 2, 3) for path in folder.glob(f"level{level}/*.py")]
    if not found:
        raise PrunerError(f"kernelbench={folder}: give the folder with level1, level2 and level3")
    found.sort(key=lambda path: (path.parent.name, int(path.name.split("_")[0])))
    return [f"{path.parent.name}/{path.stem}" for path in found]


def make(source: str, name: str, kernelbench: Path | None, image: int | None = None) -> Case:
    """A network and its inputs; raises PrunerError where no size runs here.

    ``image``: pixels per side for networks of torchvision and timm that take them.
    """
    torch.manual_seed(0)
    if source == "kernelbench":
        assert kernelbench is not None
        return _problem(kernelbench / f"{name}.py")
    if source == "torchvision" or importlib.util.find_spec("torchvision"):  # timm imports it, too
        _import_torchvision()
    package = importlib.import_module(source)
    if source == "torchvision":
        network = getattr(package.models, name)(weights=None)
    elif source == "timm":
        network = package.create_model(name, pretrained=False)
    else:
        config = getattr(package, f"{name}Config")(**TRANSFORMERS[name])
        config._attn_implementation = "eager"
        return getattr(package, f"{name}Model")(config).eval(), (torch.randint(0, 500, (1, 32)),)
    size = network.default_cfg["input_size"] if source == "timm" else (3, 224, 224)
    network.eval()
    if image is not None:
        try:
            with torch.no_grad():
                network(torch.randn(1, size[0], image, image))
            size = (size[0], image, image)
        except Exception as error:  # the network's own kinds, of a size that it does not take
            print(f"{name} keeps {size}: {error}")
    _vary(network, torch.randn(4, *size))
    return network, (torch.randn(1, *size),)


def _vary(network: nn.Module, images: torch.Tensor) -> None:
    """Give constant weights random values: a layer of zeros would hide all layers before it.

    Untrained heads are zero, scales of layers 1e-6, and normalisations the identity. The statistics
    of batches become those of `images`; without that, the values of deep networks vanish.
    """
    for values in (*network.parameters(), *network.buffers()):
        if values.is_floating_point() and values.numel() and values.min() == values.max():
            if values.dim() > 1:
                values.data = torch.randn_like(values) / values[0].numel() ** 0.5
            elif values.max() == 0:
                values.data = 0.1 * torch.randn_like(values)
            else:
                values.data = 0.5 + torch.rand_like(values)
    batches = [one for one in network.modules() if isinstance(one, nn.modules.batchnorm._BatchNorm)]
    for one in batches:
        one.momentum = 1.0
        one.train()
    if batches:
        with torch.no_grad():
            network(images)
    for one in batches:
        one.eval()


def _import_torchvision() -> None:
    """Import torchvision, also if its extension was compiled for another build of torch.

    Then the import needs two operators that no network here calls: their schemas are enough.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        schemas = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            schemas.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _SCHEMAS.append(schemas)
        importlib.import_module("torchvision")


_SCHEMAS: list[torch.library.Library] = []  # a schema lives as long as its library


def _problem(path: Path) -> Case:
    """Make a problem of KernelBench with the smallest sizes that run."""
    reason = "no size was tried"
    for divisor, batch in product(DIVISORS, (BATCH, None)):
        try:
            network, inputs = _scaled(path, divisor, batch)
            with torch.no_grad():
                network(*inputs)
        except Exception as error:  # a problem's own, for sizes that do not fit together
            reason = f"{type(error).__name__}: {error}"
            continue
        tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
        numbers = sum(one.numel() for one in [*network.parameters(), *tensors])
        if numbers <= MOST_NUMBERS[path.parent.name]:
            return network, inputs
        reason = f"{numbers:.2g} numbers in inputs and weights"
    raise PrunerError(f"{path.stem}: no small size runs ({reason.splitlines()[0][:120]})")


def _scaled(path: Path, divisor: int, batch: int | None) -> Case:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    sizes = (ast.Assign, ast.FunctionDef)  # of the module: its constants, and its inputs
    scaled = _Scaled(divisor, batch)
    tree.body = [scaled.visit(part) if isinstance(part, sizes) else part for part in tree.body]
    space: dict[str, Any] = {"__name__": path.stem}
    exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), space)
    make_module: Callable[..., nn.Module] = space["Model"]
    network = make_module(*space["get_init_inputs"]())
    return network.eval(), tuple(space["get_inputs"]())


class _Scaled(ast.NodeTransformer):
    """Divides the sizes in an assignment or a function by a divisor; sets the batch."""

    def __init__(self, divisor: int, batch: int | None) -> None:
        self.divisor, self.batch = divisor, batch

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        assigned = [ast.unparse(target) for target in node.targets]
        if self.batch and any("batch" in name for name in assigned):
            node.value = ast.Constant(self.batch)
            return node
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        if type(value) is not int or value < LEAST_SCALED:
            return node
        return ast.Constant(max(value // self.divisor, LEAST_SCALED // 2))
