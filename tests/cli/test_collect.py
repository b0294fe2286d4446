import pytest
from omegaconf import OmegaConf

from pruner.cli.collect import collect
from pruner.errors import PrunerError
from pruner.paths import conf_folder
from pruner.tune.rivals.ansor import interpreter


def config(**changes):
    values = OmegaConf.load(conf_folder() / "collect.yaml")
    for key in ("hydra", "defaults"):
        values.pop(key)
    return OmegaConf.merge(values, changes)


def test_the_driver_of_before_is_refused_with_the_new_commands():
    with pytest.raises(PrunerError, match=r"tune\.py policy=ansor_tvm .* import_logs") as told:
        collect(config(backend="ansor"))
    assert "\n" not in str(told.value)


def test_an_environment_that_is_missing_or_without_ansor_is_refused(tmp_path):
    with pytest.raises(PrunerError, match=r"run: pruner collect setup=true") as caught:
        interpreter(tmp_path / "none")
    assert "\n" not in str(caught.value)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to("/bin/false")
    with pytest.raises(PrunerError, match="crashed"):
        interpreter(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "workloads=FILE.yaml or network=NAME: give one"),
        ({"workloads": "tiny"}, "workloads=tiny: no such file; lists.*small"),
        ({"network": "resnt18"}, "network=resnt18 is unknown"),
        (
            {"workloads": "small", "measure": {"device": 1}, "prepare": True},
            "measure.device=1: it chooses among OpenCL devices",
        ),
        ({"workloads": "small", "tasks": ["x"]}, "tasks=x is unknown; known: "),
        ({"workloads": "small", "platform": "h300"}, "known platforms: a100"),
        ({"workloads": "small", "programs": 1}, "programs=1; use a whole number"),
        ({"workloads": "small", "pool": {"most": 1}}, "most 2 or more"),
    ],
)
def test_wrong_options_of_pools_say_what_to_use(changes, message, tmp_path):
    pytest.importorskip("tvm", reason="TVM 0.27 is not installed")
    with pytest.raises(PrunerError, match=message):
        collect(config(runner={"kind": "local"}, out=str(tmp_path / "out"), **changes))
    assert not list(tmp_path.iterdir())
