"""Energy counters: a folder like powercap's, and a library that answers as NVML does."""

import shutil
import subprocess

import pytest

from pruner.tune.measure.energy import energy_meter

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
"""


def zone(folder, name, used, size=1000):
    place = folder / name
    place.mkdir(parents=True)
    (place / "energy_uj").write_text(f"{used}\n")
    (place / "max_energy_range_uj").write_text(f"{size}\n")
    return place / "energy_uj"


def test_packages_are_added_up_and_a_counter_may_wrap(tmp_path):
    one, two = (zone(tmp_path, f"intel-rapl:{n}", 900) for n in (0, 1))
    zone(tmp_path, "intel-rapl:0:0", 5)  # a part of the first
    meter = energy_meter("cpu", powercap=tmp_path)
    _, before = meter.read()
    one.write_text("950")
    two.write_text("100")  # 100 to its end, 100 from there
    assert meter.read()[1] - before == pytest.approx((50 + 200) * 1e-6)


def test_a_machine_that_tells_nothing_has_no_meter(tmp_path):
    assert energy_meter("cpu", powercap=tmp_path) is None
    assert energy_meter("cuda", nvml="libno-such-driver.so") is None
    zone(tmp_path, "intel-rapl:0", 1).write_text("what?")
    assert energy_meter("cpu", powercap=tmp_path) is None


@pytest.mark.parametrize(("visible", "joules"), [("0", 0.25), ("3,1", 1.0), ("GPU-x", 2.25)])
def test_the_meter_of_a_gpu_is_that_of_the_first_that_is_visible(tmp_path, visible, joules):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler on this machine")
    library = tmp_path / "libnvml-fake.so"
    source = tmp_path / "nvml.c"
    source.write_text(NVML)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    given = {"nvml": str(library), "environment": {"CUDA_VISIBLE_DEVICES": visible}}
    meter = energy_meter("cuda", **given)
    assert meter.read()[1] - meter.read()[1] == pytest.approx(-joules)
    unknown = {**given, "environment": {"CUDA_VISIBLE_DEVICES": "no"}}
    assert energy_meter("cuda", **unknown) is None
