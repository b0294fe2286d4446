"""Devices: hand arithmetic on two files, and every way a file can be wrong."""

import dataclasses
import math
import pickle

import pytest

from pruner.errors import DataError
from pruner.program.device import CpuDevice, GpuDevice, device_from_mapping, load_device

TINY_GPU = {
    "name": "tiny",
    "kind": "gpu",
    "title": "two multiprocessors",
    "clock_hz": 1.0e9,
    "peak_flops_per_s": 2 * 8 * 2 * 1.0e9,
    "dram_bytes_per_s": 1.0e10,
    "transaction_bytes": 32,
    "vector_bytes": 16,
    "num_sms": 2,
    "float32_lanes_per_sm": 8,
    "schedulers_per_sm": 1,
    "warp_size": 8,
    "max_threads_per_block": 64,
    "shared_bytes_per_block": 4096,
    "registers_per_block": 1024,
    "max_registers_per_thread": 63,
    "registers_per_sm": 2048,
    "shared_bytes_per_sm": 8192,
    "max_threads_per_sm": 128,
    "max_blocks_per_sm": 4,
}


def without(key):
    return {k: v for k, v in TINY_GPU.items() if k != key}


def test_a_gpu_keeps_the_numbers_it_was_given():
    device = device_from_mapping(TINY_GPU)
    assert isinstance(device, GpuDevice)
    assert device.kind == "gpu"
    assert {k: getattr(device, k) for k in TINY_GPU} == TINY_GPU
    assert device.register_cap == 128  # the release's constructor default
    with pytest.raises(dataclasses.FrozenInstanceError):
        device.num_sms = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(device)) == device


def test_official_constants_replace_only_what_they_name():
    device = device_from_mapping(TINY_GPU | {"official_num_sms": 26})
    assert device.official().num_sms == 26
    assert device.num_sms == 2
    assert device.official().peak_flops_per_s == device.peak_flops_per_s
    plain = device_from_mapping(TINY_GPU)
    assert plain.official() == plain


def test_a_cpu_is_another_kind(repository):
    device = load_device(repository / "conf/platform/cpu-avx512.yaml")
    assert isinstance(device, CpuDevice)
    # 16 float32 lanes, multiply and add, two units, two cores
    assert device.peak_flops_per_s == pytest.approx(16 * 2 * 2 * 2 * device.clock_hz)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (without("dram_bytes_per_s"), "missing dram_bytes_per_s"),
        (without("registers_per_sm"), "missing registers_per_sm; add each with its source"),
        (TINY_GPU | {"unroll_follows_pragma": 1}, "unroll_follows_pragma must be true or false"),
        (TINY_GPU | {"bandwidth": 3}, "unknown key bandwidth for a gpu; known: name, title"),
        (TINY_GPU | {"num_cores": 4}, "unknown key num_cores for a gpu"),
        (TINY_GPU | {"kind": "tpu"}, "kind must be one of gpu, cpu, got 'tpu'"),
        (without("kind"), "kind must be one of gpu, cpu, got None"),
        (TINY_GPU | {"num_sms": -1}, "num_sms must be a positive whole number, got -1"),
        (TINY_GPU | {"num_sms": 2.5}, "num_sms must be a positive whole number, got 2.5"),
        (TINY_GPU | {"warp_size": True}, "warp_size must be a positive whole number, got True"),
        (TINY_GPU | {"clock_hz": math.nan}, "clock_hz must be a positive finite number"),
        (TINY_GPU | {"clock_hz": math.inf}, "clock_hz must be a positive finite number"),
        (TINY_GPU | {"clock_hz": None}, "clock_hz must be a positive finite number"),
        # what PyYAML makes of 1.5e12 without a sign
        (TINY_GPU | {"clock_hz": "1.5e12"}, r"YAML needs the sign: 1.5e\+12\), got '1.5e12'"),
        (TINY_GPU | {"title": ""}, "title must be a text"),
        (["num_sms", 2], "expected 'key: value' lines, got list"),
        (None, "expected 'key: value' lines, got NoneType"),
    ],
)
def test_a_wrong_description_is_one_line_naming_the_key(values, message):
    with pytest.raises(DataError, match=message) as caught:
        device_from_mapping(values, origin="tiny.yaml")
    assert str(caught.value).startswith("tiny.yaml: ")
    assert "\n" not in str(caught.value)


def test_an_absent_file_names_the_known_platforms(tmp_path):
    (tmp_path / "alpha.yaml").write_text("name: alpha\n")
    with pytest.raises(DataError, match=r"no platform file .*beta\.yaml; known platforms: alpha"):
        load_device(tmp_path / "beta.yaml")


def test_a_file_that_is_not_yaml_is_one_line(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text("name: [k80\nkind: gpu\n")
    with pytest.raises(DataError, match=r"broken\.yaml: not valid YAML") as caught:
        load_device(path)
    assert "\n" not in str(caught.value)
