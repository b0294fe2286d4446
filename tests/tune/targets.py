"""Targets and platforms of the tests, and the tasks of a run that needs no device."""

from pruner.program.device import load_device
from pruner.tune.measure.machine import make_platform
from pruner.tune.measure.measurer import MeasureSettings
from pruner.tune.phases import Phases
from pruner.tune.run.database import Database
from pruner.tune.run.setup import Prepared
from pruner.tune.run.tune_options import RunContext, TuneOptions
from pruner.tune.spaces.opening import open_spaces
from pruner.tune.tvm_import import load_tvm
from tests.paths import CONF

A100 = "nvidia/nvidia-a100"
AVX2 = {"kind": "llvm", "mcpu": "haswell", "num-cores": 2}
AVX512 = {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2}
TARGETS = {"cpu-avx2": AVX2, "cpu-avx512": AVX512, "a100": A100}


def target_of(given):
    """TVM's target of a name or table; a number stands for a CPU with as many cores."""
    table = {"kind": "llvm", "num-cores": given} if isinstance(given, int) else given
    return load_tvm().tvm.target.Target(table)


def module_of(tensors, **attrs):
    """TVM's module of one function of tensors."""
    tvm = load_tvm().tvm
    function = tvm.te.create_prim_func(tensors)
    for name, value in attrs.items():
        function = function.with_attr(name, value)
    return tvm.IRModule({"main": function})


def device_of(name):
    """The description of a device in ``conf/platform``."""
    return load_device(CONF / "platform" / f"{name}.yaml")


def platform_of(name, target=None, **more):
    """The platform of that device."""
    return make_platform(device_of(name), target=target, **more)


def open_designs(designs, analyzer=None, *, learns=False, log=lambda _: None, **more):
    """The space of a task of these design spaces."""
    how = {"name": "x", "analyzer": analyzer, "learns": learns, "log": log, **more}
    return open_spaces(designs, phases=Phases(), **how)


def prepared(task, policy, folder, platform, *, log=lambda _: None, phases=None, **options):
    """The only task of a run, of which nothing is measured."""
    quick = MeasureSettings(check=False, baseline=False)
    options = TuneOptions(platform=platform, policy=policy, measure=quick, **options)
    context = RunContext(
        platform=platform, measurer=None, phases=phases or Phases(), database=Database(folder),
        folder=folder, log=log,
    )  # fmt: skip
    return Prepared([task], options, context)
