"""Energy counters: a folder like powercap's, and a library that answers as NVML does."""

import shutil
import subprocess
from functools import partial
from unittest.mock import Mock

import pytest

from pruner.tune.measure import energy
from pruner.tune.measure.energy import PowercapMeter, count_energy, energy_meter

NVML = """
static unsigned long long used = 5000;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(long)(index + 1); return 0;
}
int nvmlDeviceGetHandleByUUID(const char *name, void **device) {
    *device = (void *)9; return name[0] == 'G' ? 0 : 6;
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) {
    used += 250 * (unsigned long long)device; *mj = used; return 0;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) {
    *degrees = 40 + (unsigned)(long)device; return sensor;
}
"""


def zone(folder, name, used, size=1000):
    place = folder / name
    place.mkdir(parents=True)
    (place / "energy_uj").write_text(f"{used}\n")
    (place / "max_energy_range_uj").write_text(f"{size}\n")
    return place / "energy_uj"


def test_packages_are_added_up_and_a_counter_may_wrap(tmp_path, monkeypatch):
    one, two = (zone(tmp_path, f"intel-rapl:{n}", 900) for n in (0, 1))
    zone(tmp_path, "intel-rapl:0:0", 5)  # a part of the first
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    meter = energy_meter("cpu")
    _, before = meter.read()
    one.write_text("950")
    two.write_text("100")  # 100 to its end, 100 from there
    assert meter.read()[1] - before == pytest.approx((50 + 200) * 1e-6)


def test_a_machine_that_tells_nothing_has_no_meter_and_a_counter_that_is_gone_is_told(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    monkeypatch.setattr(energy, "NVML", "libno-such-driver.so")
    assert energy_meter("cpu") is None
    assert energy_meter("cuda") is None
    zone(tmp_path, "intel-rapl:0", 1).write_text("what?")
    assert energy_meter("cpu") is None
    with pytest.raises(OSError, match="gone"):
        count_energy(Mock(**{"read.side_effect": OSError("gone")}), {}, rest=lambda: None)


@pytest.mark.parametrize(("visible", "joules"), [("0", 0.25), ("3,1", 1.0), ("GPU-x", 2.25)])
def test_the_meter_of_a_gpu_is_that_of_the_first_that_is_visible(
    tmp_path, monkeypatch, visible, joules
):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler on this machine")
    library = tmp_path / "libnvml-fake.so"
    source = tmp_path / "nvml.c"
    source.write_text(NVML)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setattr(energy, "NVML", str(library))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    meter = energy_meter("cuda")
    assert meter.read()[1] - meter.read()[1] == pytest.approx(-joules)
    assert meter.temperature_c() == 40 + 4 * joules
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "no")
    assert energy_meter("cuda") is None


def test_the_hottest_package_has_the_temperature(tmp_path):
    zone(tmp_path, "intel-rapl:0", 1)
    meter = PowercapMeter([tmp_path / "intel-rapl:0"], tmp_path / "thermal")
    assert meter.temperature_c() is None
    for number, (kind, degrees) in enumerate(
        [("acpitz", 90000), ("x86_pkg_temp", 51000), ("x86_pkg_temp", 47500)]
    ):
        place = tmp_path / "thermal" / f"thermal_zone{number}"
        place.mkdir(parents=True)
        (place / "type").write_text(f"{kind}\n")
        (place / "temp").write_text(f"{degrees}\n")
    assert meter.temperature_c() == pytest.approx(51.0)


class FakeMeter:
    """A device that idles at 5 W; the test moves its clock and its counter."""

    name = "fake"

    def __init__(self):
        self.now_s, self.used_j, self.degrees = 100.0, 7.0, 30.0

    def read(self):
        return self.now_s, self.used_j

    def temperature_c(self):
        return self.degrees

    def use(self, watts, seconds=2.0):
        self.now_s += seconds
        self.used_j += watts * seconds
        self.degrees += 1.0


def test_joules_of_a_run_are_those_above_idling_in_turns():
    meter, order = FakeMeter(), []

    def run(number, watts, runs):
        order.append(number)
        meter.use(watts)
        return runs

    given = ((4, 15.0, 100), (9, 25.0, 400), (2, 9.0, None), (7, 3.0, 10))
    programs = {one[0]: partial(run, *one) for one in given}
    found = count_energy(meter, programs, rest=lambda: meter.use(5.0), turns=2)
    assert order == [4, 9, 2, 7, 4, 9, 7]  # the program that failed has no second turn
    assert found == {
        # (15 - 5) W x 2 s / 100 runs, and (25 - 5) x 2 / 400; one degree a window from 31 on
        4: {"joules": 0.2, "watts": 15.0, "temperature_c": 36.0},
        9: {"joules": 0.1, "watts": 25.0, "temperature_c": 37.0},
        # less power than at rest: its energy is not below 0, it is unknown
        7: {"joules": None, "watts": 3.0, "temperature_c": 38.0},
    }
