"""CPU targets: what a machine lacks, and which are meant."""

import pytest

from pruner.errors import PrunerError
from pruner.tune.measure.targets import CPU_TARGETS, missing_flags, select_targets

TARGETS = {target.platform: target for target in CPU_TARGETS}


def test_flags_are_whole_words_of_the_first_processor(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor\t: 0\nflags\t\t: fpu avx avx2x sse4_2 fma\n\nprocessor : 1\nflags : avx2\n"
    )
    assert missing_flags(TARGETS["cpu-sse4"], cpuinfo) == []
    assert missing_flags(TARGETS["cpu-avx2"], cpuinfo) == ["avx2"]
    assert missing_flags(TARGETS["cpu-avx512"], cpuinfo) == list(TARGETS["cpu-avx512"].cpu_flags)


def test_a_machine_that_tells_nothing_lacks_everything(tmp_path):
    assert missing_flags(TARGETS["cpu-avx2"], tmp_path / "absent") == ["avx2", "fma"]
    (tmp_path / "arm").write_text("Features : neon\n")
    assert missing_flags(TARGETS["cpu-avx2"], tmp_path / "arm") == ["avx2", "fma"]


def test_all_one_or_a_list_of_the_names():
    assert select_targets("all") == list(CPU_TARGETS)
    assert select_targets("cpu-avx2") == [TARGETS["cpu-avx2"]]
    with pytest.raises(PrunerError, match="cpu-sse4, cpu-avx2, cpu-avx512"):
        select_targets("a100")


def test_ansors_eight_numbers():
    assert TARGETS["cpu-avx2"].hardware_params == [2, 32, 64, 0, 0, 0, 0, 0]
