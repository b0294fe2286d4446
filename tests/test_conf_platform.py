"""Every platform file loads, agrees with itself, and gives the source of each number."""

import re

import pytest

from pruner.program.device import CpuDevice, GpuDevice, load_device
from tests.places import CONF

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
CPUS = {"cpu-sse4", "cpu-avx2", "cpu-avx512"}


def test_every_named_platform_exists():
    assert {path.stem for path in FILES} >= set(OFFICIAL) | OTHERS | CPUS


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_platform_file_loads_and_is_named_after_its_platform(path):
    assert load_device(path).name == path.stem


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_peak_is_lanes_times_clock(path):
    match load_device(path):
        case GpuDevice() as gpu:
            flops_per_cycle = 2 * gpu.float32_lanes_per_sm * gpu.num_sms
            clock_hz, peak = gpu.clock_hz, gpu.peak_flops_per_s
            assert gpu.registers_per_block >= 64 * gpu.max_threads_per_block
            assert gpu.max_threads_per_block % gpu.warp_size == 0
            assert gpu.registers_per_sm >= gpu.registers_per_block
            assert gpu.shared_bytes_per_sm >= gpu.shared_bytes_per_block
            assert gpu.max_threads_per_sm >= gpu.max_threads_per_block
        case CpuDevice() as cpu:
            flops_per_cycle = cpu.flops_per_cycle_per_core * cpu.num_cores
            clock_hz, peak = cpu.clock_hz, cpu.peak_flops_per_s
            assert cpu.l1_bytes_per_core < cpu.l2_bytes_per_core < cpu.l3_bytes
            assert cpu.flops_per_cycle_per_core % (cpu.simd_bytes // 4) == 0
    assert peak == pytest.approx(flops_per_cycle * clock_hz, rel=1e-3)


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
