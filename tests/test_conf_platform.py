"""Every platform file loads, agrees with itself, and gives the source of each number."""

import re

import pytest

from pruner.program.device import CpuDevice, GpuDevice, load_device
from tests.paths import CONF

FOLDER = CONF / "platform"
FILES = sorted(FOLDER.glob("*.yaml"))

# The device table of the public release: peak GFLOP/s, GB/s, multiprocessors.
OFFICIAL = {
    "k80": (8226, 480, 26),
    "t4": (8141, 320, 40),
    "titanv": (14900, 651, 80),
    "orin": (2660, 204, 16),
    "a100": (19490, 1935, 108),
    "a100_40": (19490, 1555, 108),
}
OTHERS = {"v100", "mi50", "rtx3080", "rtx4090", "h100", "h200"}
OTHERS |= {"opencl", "opencl-pocl", "rx7900", "arc-a770", "mali-g78"}
CPUS = {"cpu-sse4", "cpu-avx2", "cpu-avx512", "cpu-epyc", "cpu-zen5"}


def test_every_named_platform_exists():
    assert {path.stem for path in FILES} >= set(OFFICIAL) | OTHERS | CPUS


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_platform_file_is_named_after_its_platform_whose_peak_is_lanes_times_clock(path):
    assert load_device(path).name == path.stem
    match load_device(path):
        case GpuDevice() as gpu:
            flops_per_cycle = 2 * gpu.float32_lanes_per_sm * gpu.num_sms
            clock_hz, peak = gpu.clock_hz, gpu.peak_flops_per_s
            assert gpu.registers_per_block >= 64 * gpu.max_threads_per_block
            assert gpu.max_threads_per_block % gpu.warp_size == 0
            assert gpu.registers_per_sm >= gpu.registers_per_block
            assert gpu.shared_bytes_per_sm >= gpu.shared_bytes_per_block
            assert gpu.max_threads_per_sm >= gpu.max_threads_per_block
            opt_in = gpu.shared_bytes_per_block_opt_in or gpu.shared_bytes_per_block
            assert gpu.shared_bytes_per_block <= opt_in <= gpu.shared_bytes_per_sm
        case CpuDevice() as cpu:
            flops_per_cycle = cpu.flops_per_cycle_per_core * cpu.num_cores
            clock_hz, peak = cpu.clock_hz, cpu.peak_flops_per_s
            assert cpu.l1_bytes_per_core < cpu.l2_bytes_per_core < cpu.l3_bytes
            assert cpu.flops_per_cycle_per_core % (cpu.simd_bytes // 4) == 0
    assert peak == pytest.approx(flops_per_cycle * clock_hz, rel=1e-3)


# Multiply-adds of float16 a cycle and multiprocessor, from the white papers of the architectures.
TENSOR = {
    "v100": 512, "titanv": 512, "t4": 512, "a100": 1024, "a100_40": 1024, "orin": 1024,
    "rtx3080": 512, "rtx4090": 512, "h100": 2048, "h200": 2048,
}  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_peaks_of_tensor_cores_are_units_times_clock(path):
    """Ampere and later GeForce boards add up in float32 at half the rate, and have int8 at twice.

    The boost of tensor cores may be below that of the lanes: down to 7 % lower in data sheets.
    """
    gpu = load_device(path)
    if path.stem not in TENSOR:
        assert not isinstance(gpu, GpuDevice) or gpu.tensor_half_flops_per_s is None
        return
    assert isinstance(gpu, GpuDevice)
    peak = gpu.tensor_ops_per_s("float16", "float16")
    assert 0.92 < peak / (2 * TENSOR[path.stem] * gpu.num_sms * gpu.clock_hz) < 1.01
    halved = path.stem.startswith("rtx")
    into_single = gpu.tensor_ops_per_s("float16", "float32")
    assert into_single * (2 if halved else 1) == pytest.approx(peak, rel=1e-3)
    if path.stem not in ("v100", "titanv"):
        assert gpu.tensor_ops_per_s("int8", "int32") == pytest.approx(2 * peak, rel=1e-3)
    if path.stem not in ("v100", "titanv", "t4"):
        assert gpu.tensor_ops_per_s("bfloat16", "float32") == into_single
    assert gpu.tensor_ops_per_s("float32", "float32") is None


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("h200", "tensor_half_flops_per_s"),
        ("rtx3080", "tensor_half_into_half_flops_per_s"),  # twice the rate of float32 sums
        ("mi50", "half_flops_per_s"),  # no tensor cores
        ("k80", "peak_flops_per_s"),  # no rate of float16
    ],
)
def test_the_float16_peak_is_of_the_fastest_units(name, units):
    gpu = load_device(FOLDER / f"{name}.yaml")
    assert gpu.half_peak_flops_per_s == getattr(gpu, units) > 0


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_constants_are_those_of_the_release(name):
    device = load_device(FOLDER / f"{name}.yaml").official()
    gflops, gbytes, sms = OFFICIAL[name]
    assert device.peak_flops_per_s == pytest.approx(gflops * 1e9, rel=1e-4)
    assert device.dram_bytes_per_s == pytest.approx(gbytes * 1e9, rel=1e-4)
    assert (device.num_sms, device.schedulers_per_sm, device.warp_size) == (sms, 4, 32)
    assert device.register_cap == 128


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_each_number_has_a_comment_and_each_source_is_explained(path):
    text = path.read_text()
    numbers = [line for line in text.splitlines() if re.match(r"\w+: [\d.]", line)]
    assert numbers
    without_source = [line for line in numbers if "#" not in line]
    assert not without_source
    explained = set(re.findall(r"^# (\[\w+\])", text, flags=re.MULTILINE))
    used = {key for line in numbers for key in re.findall(r"\[\w+\]", line)}
    assert used <= explained
