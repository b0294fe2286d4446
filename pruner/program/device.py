"""Devices: constants for the analyzer and the GPU checks, from YAML files.

A file of ``conf/platform`` holds the constructor arguments of its ``kind``, each with its source.
"""

import dataclasses
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_type_hints

import yaml

from pruner.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Constants common to all devices; use a concrete kind.

    Peak rates count a multiply-add as two operations. Raises `DataError` where a number is not
    positive and finite.
    """

    kind: ClassVar[Literal["gpu", "cpu"]]

    name: str
    title: str
    clock_hz: float
    peak_flops_per_s: float
    dram_bytes_per_s: float
    transaction_bytes: int  # what one full memory transaction or cache line moves
    vector_bytes: int  # widest load or store one thread can do

    def __post_init__(self) -> None:
        """Check every number, whether it came from YAML or from Python."""
        for field, hint in get_type_hints(type(self)).items():
            if field != "kind":
                _check(self.name, field, hint, getattr(self, field))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevice(Device):
    """A GPU: `num_sms` multiprocessors that run warps of `warp_size` threads.

    ``official_*``: of the public Pruner release (``task_scheduler``), see `official`. Peaks of
    other types are dense, None where absent: ``half_flops_per_s`` is float16 on the lanes of
    float32; ``tensor_*`` are matrix units, float16 products added up in float32 or float16, int8
    ones in int32.
    """

    kind: ClassVar[Literal["gpu", "cpu"]] = "gpu"

    num_sms: int
    float32_lanes_per_sm: int
    schedulers_per_sm: int
    warp_size: int
    max_threads_per_block: int
    shared_bytes_per_block: int  # without the opt-in for more
    registers_per_block: int  # 32-bit registers
    max_registers_per_thread: int
    registers_per_sm: int  # what one multiprocessor holds for all its resident blocks
    shared_bytes_per_sm: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    unroll_follows_pragma: bool = True  # its compiler unrolls what the pragma asks for
    compiled_threads_per_block: int | None = None  # registers are allotted for it; null: the block
    scalar_registers: bool = False  # addresses and counters live in registers of their own
    architecture: str | None = None  # as targets name it: sm_80, gfx906; opencl: any with a driver
    opencl_device: str | None = None  # words of its name, `a|b`: either; null: this machine's first
    register_cap: int = 128  # registers per thread from which the analyzer counts spilling
    shared_bytes_per_block_opt_in: int | None = None  # dynamic, that a kernel may ask for
    half_flops_per_s: float | None = None
    tensor_half_flops_per_s: float | None = None  # accumulated in float32
    tensor_half_into_half_flops_per_s: float | None = None  # accumulated in float16
    tensor_bfloat16_flops_per_s: float | None = None
    tensor_int8_ops_per_s: float | None = None
    official_peak_flops_per_s: float | None = None
    official_dram_bytes_per_s: float | None = None
    official_num_sms: int | None = None

    @property
    def half_peak_flops_per_s(self) -> float:
        """Highest float16 rate: of tensor cores, else of lanes, else of float32."""
        tensor = self.tensor_half_into_half_flops_per_s or self.tensor_half_flops_per_s
        return tensor or self.half_flops_per_s or self.peak_flops_per_s

    def tensor_ops_per_s(self, dtype: str, accumulator: str) -> float | None:
        """Return the matrix units' peak for an operand type; None where unsupported."""
        return {
            ("float16", "float32"): self.tensor_half_flops_per_s,
            ("float16", "float16"): self.tensor_half_into_half_flops_per_s,
            ("bfloat16", "float32"): self.tensor_bfloat16_flops_per_s,
            ("int8", "int32"): self.tensor_int8_ops_per_s,
        }.get((dtype, accumulator))

    def official(self) -> "GpuDevice":
        """Return this device with the constants of the public release in force."""
        return dataclasses.replace(
            self,
            peak_flops_per_s=self.official_peak_flops_per_s or self.peak_flops_per_s,
            dram_bytes_per_s=self.official_dram_bytes_per_s or self.dram_bytes_per_s,
            num_sms=self.official_num_sms or self.num_sms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuDevice(Device):
    """A CPU target: its cores and usable vector instructions; one machine may be several."""

    kind: ClassVar[Literal["gpu", "cpu"]] = "cpu"

    num_cores: int
    simd_bytes: int
    vector_registers: int
    flops_per_cycle_per_core: int
    l1_bytes_per_core: int  # data cache
    l2_bytes_per_core: int
    l3_bytes: int  # shared by all cores
    architecture: str | None = None  # LLVM's name: -mcpu=haswell


_KINDS: dict[str, type[Device]] = {"gpu": GpuDevice, "cpu": CpuDevice}


def load_device(path: Path) -> Device:
    """Read one platform file; raise `DataError` with file, key and fix."""
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.yaml"))) or "none"
        raise DataError(f"no platform file {path}; known platforms: {known}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise DataError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    return device_from_mapping(values, origin=str(path))


def device_from_mapping(values: object, *, origin: str = "platform") -> Device:
    """Build the device of arguments and ``kind``; raise `DataError` naming its `origin`."""
    if not isinstance(values, Mapping):
        raise DataError(f"{origin}: expected 'key: value' lines, got {type(values).__name__}")
    arguments: dict[str, Any] = {str(key): value for key, value in values.items()}
    kind = arguments.pop("kind", None)
    if kind not in _KINDS:
        raise DataError(f"{origin}: kind must be one of {', '.join(_KINDS)}, got {kind!r}")
    device_type = _KINDS[kind]
    fields = dataclasses.fields(device_type)
    if unknown := sorted(arguments.keys() - {field.name for field in fields}):
        raise DataError(
            f"{origin}: unknown key {', '.join(unknown)} for a {kind}; "
            f"known: {', '.join(field.name for field in fields)}"
        )
    required = {field.name for field in fields if field.default is dataclasses.MISSING}
    if missing := sorted(required - arguments.keys()):
        raise DataError(f"{origin}: missing {', '.join(missing)}; add each with its source")
    try:
        return device_type(**arguments)
    except DataError as error:
        raise DataError(f"{origin}: {error}") from error


def _check(device: str, field: str, hint: Any, value: object) -> None:
    """Raise `DataError` unless `value` fits the annotation `hint` of `field`."""
    allowed = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    # ``type(value)``, not isinstance: a bool is an int in Python, and YAML reads ``yes`` as true.
    if value is None and type(None) in allowed:
        return
    if str in allowed:
        good, wanted = isinstance(value, str) and bool(value), "a text"
    elif bool in allowed:
        good, wanted = type(value) is bool, "true or false"
    elif int in allowed:
        good, wanted = type(value) is int and value > 0, "a positive whole number"
    else:
        good = type(value) in (int, float) and 0 < value < math.inf  # type: ignore[operator]
        wanted = "a positive finite number (YAML needs the sign: 1.5e+12)"
    if not good:
        raise DataError(f"platform {device}: {field} must be {wanted}, got {value!r}")
