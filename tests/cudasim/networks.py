"""A small network for the simulated device, as ``network=tests.cudasim.networks:small``.

    python -m tests.cudasim.simulator python -m tests.cudasim.networks

builds it with and without a CUDA graph, runs both on four inputs, and prints the outputs and how
often each library captures, as JSON.
"""

import json

import numpy as np
import torch
from torch import nn

from pruner.program.device import load_device
from pruner.tune.deploy.apply_records import apply_records
from pruner.tune.deploy.build import compiled
from pruner.tune.measure.machine import make_platform
from pruner.tune.networks.lowering import NetworkFormat
from pruner.tune.networks.request import NetworkRequest, lowered_network
from pruner.tune.networks.source import NetworkSource
from pruner.tune.tvm_import import load_tvm
from tests.paths import CONF


class Small(nn.Module):
    """Three convolutions with a sum of two branches, a mean, a layer, and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.third, self.last = nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(self.third(x + torch.relu(self.second(x))))
        return torch.softmax(self.last(x.mean((2, 3))), -1)


def small() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return Small().eval(), (torch.randn(1, 3, 8, 8),)


def main() -> None:
    """See above."""
    target = make_platform(load_device(CONF / "platform" / "a100.yaml")).target_json
    source = NetworkSource(name="tests.cudasim.networks:small")
    form = NetworkFormat(layout="NHWC")
    request = NetworkRequest(source=source, target=json.loads(target), form=form)
    module, _, _ = lowered_network(request)
    module, _ = apply_records(module, request.tvm_target(), {}, by_rules=True)
    tvm, device, found = load_tvm().tvm, load_tvm().tvm.cuda(0), {}
    images = np.random.default_rng(0).normal(size=(4, 1, 3, 8, 8)).astype("float32")
    for name, cuda_graph in (("apart", False), ("graph", True)):
        built = compiled(module, request.tvm_target(), cuda_graph=cuda_graph)
        run = load_tvm().relax.VirtualMachine(built, device)["main"]
        outputs = [run(tvm.runtime.tensor(image, device=device)) for image in images]
        values = [
            np.asarray(one.numpy() if hasattr(one, "numpy") else one[0].numpy()) for one in outputs
        ]
        captures = built.as_text().count("vm.builtin.cuda_graph.run_or_capture")
        found[name] = {"captures": captures, "outputs": [value.tolist() for value in values]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
