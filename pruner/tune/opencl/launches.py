"""Record a kernel's launches as JSON that runs without TVM."""

from collections.abc import Sequence
from typing import Any

from pruner.tune.opencl.runtime import recorded_launches

Arguments = Sequence[tuple[tuple[int, ...], str]]

# Stands beside the kernels; `plan` is what `launch_plan` makes.
RUNNER = '''"""Run a kernel of this folder without TVM; pip install pyopencl numpy.

    python run_opencl.py KERNEL.json            with random inputs, timed by the device
    from run_opencl import run; run("KERNEL.json", *inputs)     gives the output
"""
import json, pathlib, sys  # noqa: E401
import numpy, pyopencl  # noqa: E401


def run(path, *inputs):
    path = pathlib.Path(path)
    plan, text = json.loads(path.read_text()), path.with_suffix(".cl").read_text()
    context = pyopencl.create_some_context(interactive=False)
    profiled = pyopencl.command_queue_properties.PROFILING_ENABLE
    queue = pyopencl.CommandQueue(context, properties=profiled)
    program, flags = pyopencl.Program(context, text).build(), pyopencl.mem_flags.READ_WRITE
    sizes = [argument["bytes"] for argument in plan["arguments"]] + plan["workspaces"]
    buffers = [pyopencl.Buffer(context, flags, size) for size in sizes]
    for buffer, array in zip(buffers, inputs):
        pyopencl.enqueue_copy(queue, buffer, numpy.ascontiguousarray(array))
    events = []
    for launch in plan["launches"]:
        arguments = [
            buffers[a["buffer"]] if "buffer" in a else numpy.dtype(a["dtype"]).type(a["value"])
            for a in launch["arguments"]
        ]
        kernel = pyopencl.Kernel(program, launch["kernel"])
        events.append(kernel(queue, launch["global"], launch["local"], *arguments))
    last = plan["arguments"][-1]
    output = numpy.empty(last["shape"], last["dtype"])
    pyopencl.enqueue_copy(queue, output, buffers[len(plan["arguments"]) - 1]).wait()
    run.seconds = 1e-9 * sum(event.profile.end - event.profile.start for event in events)
    return output


if __name__ == "__main__":
    arguments = json.loads(pathlib.Path(sys.argv[1]).read_text())["arguments"]
    arrays = [numpy.random.rand(*a["shape"]).astype(a["dtype"]) for a in arguments[:-1]]
    output = run(sys.argv[1], *arrays)
    print(output.shape, output.dtype, output.ravel()[:4], f"{1e3 * run.seconds:.3f} ms")
'''


def launch_plan(module: Any, arguments: Arguments, target: str) -> dict[str, Any]:
    """Describe as JSON how the kernels of a program are launched.

    No device is needed.

    ``arguments`` are those of ``main``, the output last, with shape, dtype and bytes;
    ``workspaces`` the bytes of further buffers. Buffers are numbered in this order. A launch has
    global and local sizes (x, y, z) in work items, and the kernel's arguments in order.
    """
    recorded = [_launch(line) for line in recorded_launches(module, list(arguments))]
    sizes = {number: size for _, found in recorded for number, size in found.items()}
    return {
        "target": target,
        "arguments": [
            {"shape": list(shape), "dtype": dtype, "bytes": sizes[number]}
            for number, (shape, dtype) in enumerate(arguments)
        ],
        "workspaces": [sizes[number] for number in sorted(sizes) if number >= len(arguments)],
        "launches": [launch for launch, _ in recorded],
    }


def _launch(line: str) -> tuple[dict[str, Any], dict[int, int]]:
    name, *words = line.split(" ")
    # runtime.cc writes: name, global x y z, local x y z, then the arguments
    sizes, buffers = [int(word) for word in words[:6]], dict[int, int]()
    given = list[dict[str, Any]]()
    for word in words[6:]:
        dtype, *values = word.split(":")
        if dtype == "handle":
            number, size = map(int, values)
            buffers[number] = size
            given.append({"buffer": number})
        else:
            given.append({"value": float(values[0]), "dtype": dtype})
    return {"kernel": name, "global": sizes[:3], "local": sizes[3:], "arguments": given}, buffers
