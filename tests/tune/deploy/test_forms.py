"""Of two forms of a network the faster library is kept; both forms keep their folders."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from pruner.cli.tuning import network
from pruner.errors import DataError, PrunerError
from pruner.tune.compare.baselines import Resources
from pruner.tune.compare.benchmark import BaselineTiming
from pruner.tune.deploy import forms as module
from pruner.tune.deploy.build import INPUTS
from pruner.tune.deploy.built_files import DEPLOY_FILE, LIBRARY, LOADER, LOG, WORK
from pruner.tune.deploy.network import Deployed
from pruner.tune.networks.extraction import save_tasks
from pruner.tune.networks.lowering import NetworkFormat
from pruner.tune.networks.request import LOWERED, REQUEST, NetworkRequest
from pruner.tune.networks.variants.choosing import VariantReport
from pruner.tune.run.journal import JOURNAL_FILE, SNAPSHOT_FILE
from pruner.tune.run.result import TaskOutcome, Tuned
from tests.tune.networks.lowered import source, tasks_of

pytestmark = pytest.mark.tvm
WITH = NetworkFormat(variants={"ab": ["order 0"]})
CPU = SimpleNamespace(device="cpu")


def write_form(folder, form, tasks=()):
    folder.mkdir(exist_ok=True)
    NetworkRequest(source=source("faint"), target={}, form=form).save(folder / REQUEST)
    save_tasks(tasks, folder / module.TASKS)
    (folder / LOWERED).write_text("variants" if form.variants else "original")


@pytest.fixture
def folder(tmp_path):
    """A run folder of both forms, as it is before the deployment."""
    write_form(tmp_path, WITH)
    write_form(tmp_path / module.OTHER, NetworkFormat())
    VariantReport().save(tmp_path)
    return tmp_path


@pytest.fixture
def built(monkeypatch):
    """Libraries that are words; `latencies_s` and `broken` say how they run."""
    how = SimpleNamespace(latencies_s={}, broken=(), databases=[], runs=[])

    def deploy(place, platform, _, *, database, log, run=None, **__):
        name = (place / LOWERED).read_text()
        how.databases.append(database)
        how.runs.append(run)
        if name in how.broken:
            raise PrunerError(f"{name}: its outputs differ")
        (place / LIBRARY).write_text(name)
        (place / WORK).mkdir(exist_ok=True)
        for path in (place / WORK / INPUTS, place / LOG):
            path.write_text(name)
        (place / DEPLOY_FILE).write_text("{}")
        return Deployed(
            library=place / LIBRARY, target="llvm", resources=Resources(threads=1), tasks=0,
            applied=0, drafted=0, by_rules=0, untouched=[], size_bytes=1, seconds={},
        )  # fmt: skip

    def timed(baselines, *_, **__):
        return [
            BaselineTiming(name=one.name, label=one.label, latencies_s=how.latencies_s[one.name])
            for one in baselines
        ]

    monkeypatch.setattr(module, "deploy_network", deploy)
    monkeypatch.setattr(module, "run_interleaved", timed)
    monkeypatch.setattr(module, "cannot_run", lambda _: None)
    return how


@pytest.mark.parametrize(("original_s", "best"), [(3e-3, "variants"), (1e-3, "original")])
def test_the_faster_form_is_in_the_run_folder(folder, built, original_s, best):
    built.latencies_s = {"variants": [9e-3, 2e-3, 1e-3], "original": [original_s]}  # median: 2 ms
    deployed = module.deploy_faster(folder, CPU, None)
    # the records and finalists of both are in the run folder
    assert built.databases == built.runs == [folder, folder]
    assert deployed.library == folder / LIBRARY
    for path in (folder / LIBRARY, folder / LOG, folder / WORK / INPUTS):
        assert path.read_text() == best  # all files are of one build
    assert (module.built_form(folder) / LOWERED).read_text() == best
    # a run that is stopped at any time keeps both forms where they are
    assert (folder / LOWERED).read_text() == "variants"
    assert not (folder / module.OTHER / LIBRARY).exists()
    report = VariantReport.read(folder)
    assert (report.built, report.latencies_s) == (best, {"variants": 2e-3, "original": original_s})
    word = "with" if best == "variants" else "without"
    assert deployed.notes[-1] == (
        f"variants: timed in turns, the network takes 2 ms with them and {1e3 * original_s:g} ms "
        f"without ({original_s / 2e-3:.3g} times as long); the library is built {word} them"
    )
    kept = json.loads((folder / DEPLOY_FILE).read_text())
    assert kept["notes"] == deployed.notes
    # tuning goes on with both, in the same order
    assert list(module.forms(folder)) == ["variants", "original"]
    built.latencies_s = {"variants": [1e-4], "original": [1.0]}
    module.deploy_faster(folder, CPU, None)
    assert (folder / LIBRARY).read_text() == "variants"
    assert module.built_form(folder) == folder


def test_a_form_that_is_wrong_loses(folder, built):
    built.broken = ("variants",)
    lines = []
    deployed = module.deploy_faster(folder, CPU, None, log=lines.append)
    assert (folder / LIBRARY).read_text() == "original"
    assert (folder / LOADER).is_file()
    assert "variants: variants: its outputs differ" in lines
    assert "without them; the other form has no library that runs" in deployed.notes[-1]
    built.broken = ("variants", "original")
    with pytest.raises(PrunerError, match="variants: its outputs differ"):
        module.deploy_faster(folder, CPU, None)


def test_a_form_of_another_network_is_refused_and_one_form_is_deployed_as_ever(folder, built):
    path = folder / module.OTHER / REQUEST
    replace(NetworkRequest.read(path), source=source("encoder")).save(path)
    with pytest.raises(DataError, match=r"not the network of .*; start a new run"):
        module.deploy_faster(folder, CPU, None)
    assert built.databases == []
    (folder / module.OTHER / module.TASKS).unlink()
    module.deploy_faster(folder, CPU, None)
    assert built.databases == [None]
    assert VariantReport.read(folder).built == ""


@pytest.mark.parametrize("begun", [None, JOURNAL_FILE, SNAPSHOT_FILE])
def test_a_run_of_before_continues_without_the_original(tmp_path, monkeypatch, begun):
    write_form(tmp_path, WITH)
    for name in [begun] if begun else []:
        (tmp_path / name).touch()
    extracted = []
    monkeypatch.setattr(network, "extract_original", lambda place, **_: extracted.append(place))
    monkeypatch.setattr(network, "platform_of", lambda *_: None)
    config = OmegaConf.create({"network": source("faint").name, "compile_only": False})
    network.tasks_to_tune(config, CPU, tmp_path)
    assert extracted == ([] if begun else [tmp_path])
    config.network = "resnet18"  # the request of the folder names code of others
    if not begun:
        with pytest.raises(DataError, match="but the run is of resnet18"):
            network.tasks_to_tune(config, CPU, tmp_path)


def test_the_estimate_is_that_of_the_faster_form(tmp_path, capsys):
    """Calls of each form times the latencies of each task, by hand."""
    first, second, *_ = tasks_of("faint")
    first, second = (replace(one, share=0.5) for one in (first, second))
    write_form(tmp_path, WITH, [replace(first, weight=3)])
    original = [replace(first, weight=1), replace(second, weight=2)]
    write_form(tmp_path / module.OTHER, NetworkFormat(), original)
    outcomes = [
        TaskOutcome(
            name=one.name, weight=9.0, flops=1.0, best_s=s, trials=1, failures={}, untuned_s=10 * s
        )
        for one, s in ((first, 1e-3), (second, 4e-3))
    ]
    tuned = Tuned(tasks=outcomes, seconds={}, folder=tmp_path, work_dir=tmp_path)
    row = network.estimated(SimpleNamespace(network="net", compile_only=False), tuned)
    forms_s = {"variants": 3e-3, "original": 1e-3 + 8e-3}
    assert row["forms_estimated_s"] == pytest.approx(forms_s)
    assert row["estimated_latency_s"] == row["best_latency_s"] == pytest.approx(3e-3)
    assert row["untuned_latency_s"] == pytest.approx(3e-2)
    assert "net (original): 9 ms estimated" in capsys.readouterr().err
