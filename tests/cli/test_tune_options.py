"""Options of ``tune.py`` that contradict each other are refused before a folder or a worker is."""

import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hydra.core.hydra_config import HydraConfig

from pruner.cli.shared.known import read_words
from pruner.cli.shared.runs import CONFIG_FILE, read_config
from pruner.cli.shared.start import check_contradicted
from pruner.errors import DataError, MissingExtra, PrunerError
from pruner.features import FEATURE_SET_VERSION
from pruner.files import save_metrics
from pruner.models.checkpoint.checkpoint import CheckpointInfo, save_checkpoint
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.networks.pacm import PaCM
from pruner.models.networks.tlp import TLP
from pruner.models.programs.scaler import ColumnScaler
from pruner.models.ranker import NeuralRanker
from pruner.models.registry import ModelSpec
from pruner.tune.measure.measurer import MeasureSettings
from pruner.tune.run.budget import TuneBudget
from tests.cli.outcome import composed

pytestmark = pytest.mark.tvm
FINETUNE = "adaptation=finetune"


def plan(*options):
    """What a command of these words would tune by; files of equal choices are composed once."""
    from pruner.cli.tuning.read_options import tune_options

    # a platform whose instructions every machine has that tunes
    words = [] if any(word.startswith("platform=") for word in options) else ["platform=cpu-avx2"]
    return tune_options(read_words("tune", [*words, *options]).config)


def run_folder(path, dataflow="paper", seen=(), network=TenSetMLP):
    ranker = NeuralRanker(network(), ColumnScaler(), relative=True)
    info = CheckpointInfo(
        model=ModelSpec.of(network),
        feature_version=FEATURE_SET_VERSION,
        dataflow=dataflow,
        seen_tasks={platform: ["a task"] for platform in seen},
    )
    save_checkpoint(path / "best.safetensors", ranker, info)
    return path


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "adaptation=scratch throws its weights away"),
        (["model=xgboost"], "model=xgboost cannot continue it"),
        (["verify=false"], "nothing would use it"),
        (["policy=random"], "nothing would use it"),
        (["policy=metaschedule"], "nothing would use it"),
        (["policy=ansor_tvm"], "nothing would use it"),
        (["policy=adatune"], "nothing would use it"),
    ],
)
def test_a_checkpoint_that_would_not_count_is_refused(tmp_path, options, told):
    with pytest.raises(PrunerError, match=told):
        plan(f"checkpoint={run_folder(tmp_path)}", *options)


@pytest.mark.parametrize("name", ["", "best.safetensors"])
def test_a_checkpoint_is_a_file_or_a_run_folder(tmp_path, name):
    model = plan(f"checkpoint={run_folder(tmp_path) / name}", FINETUNE).make_model()
    assert model.ranker is not None  # scores before anything is measured


@pytest.mark.parametrize("word", ["model=pacm", "inputs=official", "+model.width=8"])
def test_a_model_that_is_not_the_checkpoints_is_refused(tmp_path, door, word):
    given = f"checkpoint={run_folder(tmp_path)}"
    code, _, err = door("tune", given, FINETUNE, word, "platform=cpu-avx2")
    assert (code, "leave out " in err, word in err) == (2, True, True), err


def test_a_model_that_is_the_checkpoints_may_be_named(tmp_path, monkeypatch):
    words = [f"checkpoint={run_folder(tmp_path)}", "model=tensetmlp"]
    whole, config = (composed("tune", *words, whole=given) for given in (True, False))
    monkeypatch.setattr(HydraConfig.instance(), "cfg", whole)
    check_contradicted(config, ())


class Own(TenSetMLP):
    """A network that only its user knows."""


def test_a_checkpoint_may_name_a_class_of_its_user(tmp_path):
    own = f"models.own=[{__name__}.Own]"
    given = f"checkpoint={run_folder(tmp_path, network=Own)}"
    model = plan(given, FINETUNE, own).make_model()
    assert type(model.ranker.network).__name__ == "Own"
    with pytest.raises(DataError, match=r"holds a Own, .* models\.own="):
        plan(given, FINETUNE)


@pytest.mark.parametrize(("seen", "told"), [("v100", True), ("cpu-avx2", False)])
def test_a_checkpoint_of_another_device_is_told_in_one_line(tmp_path, capsys, seen, told):
    plan(f"checkpoint={run_folder(tmp_path, seen=[seen])}", FINETUNE, "platform=cpu-avx2")
    err = capsys.readouterr().err
    assert (f"trained on {seen}, never on cpu-avx2, which is tuned now" in err) == told


@pytest.mark.parametrize("name", ["pacm", "pacm_official"])
def test_networks_of_ten_and_of_eight_rows_run_live(name):
    rows = {"pacm": "paper", "pacm_official": "official"}
    assert plan(f"model={name}").make_model().dataflow == rows[name]


def test_checkpoints_of_the_official_dataflow_run_live_and_of_primitives_do_not(tmp_path):
    network = partial(PaCM, num_dataflow_rows=8, width=8)
    folder = run_folder(tmp_path, "official", network=network)
    ways = (FINETUNE, *(f"adaptation={name}" for name in ("moa_official", "none", "residual")))
    for adaptation in ways:
        model = plan(f"checkpoint={folder}", adaptation).make_model()
        assert model.dataflow == "official"
    folder = run_folder(tmp_path, network=TLP)
    told = "TLP reads primitives of Ansor's records, which live spaces do not have"
    with pytest.raises(PrunerError, match=told):
        plan(f"checkpoint={folder}", FINETUNE)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["model=xgboost", FINETUNE], "FineTune would not be used, XGBoostRanker is grown anew"),
        (["verify=false", FINETUNE], "FineTune would not be used, no model learns"),
        (["policy=random", "adaptation=moa"], "would not be used, no model learns"),
        (["adaptation=none"], "adaptation=none scores with a trained model: give checkpoint=RUN"),
        (["model=tlp"], "TLP reads primitives"),
        (["model=lightgbm"], "a network or model=xgboost"),
        (["policy.redraft_period=0"], "policy.redraft_period must be at least 1"),
        (["policy.verify.mutation_probability=1.5"], "mutation_probability must be from 0 to 1"),
        (["policy=pruner_paper", "policy.verify.mutation_probability=0.5"], "has no effect with"),
        (["policy=gradient", "policy.draft.generations=2"], "drafts without evolution"),
        (["policy=ansor", "policy.random_sample=0"], "policy.random_sample must be at least 1"),
        (["policy=ansor_tvm", "measure.memory_gib=4"], "measure.memory_gib=4"),
        (["policy=adatune", "policy.epsilon=0.9"], "epsilon"),
        (["policy=adatune", "policy.forest.trees=0"], "trees and columns_at_split must be"),
        (["policy=adatune", "policy.forest.columns_at_split=0"], "trees and columns_at_split must"),
        (["policy=adatune", "policy.forest.bagging=1.0"], "bagging must be above 0 and below 1"),
        (["model=random"], "a network or model=xgboost"),
        (["model=symbolic"], "a network or model=xgboost"),
        (["measure.cv_limit=0.1"], "measure.repeats=6"),
        (["measure.stop_above=0.5"], "measure.stop_above=0.5: it must be 1 or more"),
        (["measure.finalists=1"], "measure.finalists=1: one program is compared with none"),
        (["compile_only=true", "measure.finalists=4"], "compile_only=true measures nothing"),
        (["measure.stop_above=1.2", "measure.repeats=1"], "leaves repeats out from the second on"),
        (["policy=ansor_tvm", "measure.stop_above=1.5"], "measure.stop_above=1.5"),
        (["policy=ansor_tvm", "measure.finalists=4"], "measure.finalists=4"),
        (["policy=ansor_tvm", "measure.cv_limit=0.1", "measure.repeats=6"], "measure.cv_limit=0.1"),
        (["policy=ansor_tvm", "compile_only=true"], "compile_only=True"),
        (["policy=ansor_tvm", "budget.seconds=9"], "budget.seconds=9"),
        (["policy=ansor_tvm", "network=dcgan"], "Ansor tunes one named operator a run"),
        (["policy=ansor_tvm", "budget.patience=3"], "budget.patience=3"),
        (["policy=ansor_tvm", "warm_start=[a,b]"], "warm_start=a,b"),
        (["policy=ansor_tvm", "work_dir=a"], "work_dir=a"),
        (["policy=ansor_tvm", "task_order=round_robin"], "task_order=round_robin"),
        (["policy=ansor_tvm", "spaces=replay"], "spaces=replay"),
        (["policy=ansor_tvm", "measure.exclusive=false"], "measure.exclusive=false"),
        (["policy=ansor_tvm", "measure.lag=0"], "measure.lag=0"),
        (["policy=metaschedule", "measure.lag=1"], "measure.lag=1: MetaSchedule"),
        (["policy=metaschedule", "spaces=replay"], "spaces=replay: MetaSchedule"),
        (["runner=rpc", "runner.key=board", "target=host"], "name the device"),
        (["platform=a100", "compile_only=true", "measure.flush_cache=true"], "caches of CPUs"),
        (["objective=energy", "compile_only=true"], "compile_only=true measures nothing"),
        (["objective=edp", "policy=metaschedule"], "looks for small latency alone"),
        (["objective=edp", "policy=adatune"], "looks for small latency alone"),
        (["objective=energy", "warm_start=[a]"], "have no sizes and joules"),
        (["objective=[latency,size]", "spaces=replay"], "leave spaces=replay out"),
    ],
)
def test_choices_that_cannot_work_are_refused(options, told):
    with pytest.raises(PrunerError, match=told):
        plan(*options)


def test_programs_are_sized_where_the_objective_asks_for_it():
    pytest.importorskip("pymoo")
    assert plan("objective=[latency,size]").measure.sizes
    for given in ([], ["objective=energy"], ["objective=[latency,energy]"]):
        assert not plan(*given).measure.sizes


def test_an_objective_with_a_front_needs_pymoo(monkeypatch):
    for name in [one for one in sys.modules if one.partition(".")[0] == "pymoo"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pymoo", None)
    with pytest.raises(MissingExtra, match=r"pymoo is not installed; run: pip install 'pruner\[ob"):
        plan("objective=[latency,energy]")
    assert plan("objective=edp").objective.has_energy


@pytest.mark.parametrize(("policy", "lag"), [("metaschedule", None), ("pruner_network", 1)])
def test_a_network_is_tuned_a_batch_ahead_where_the_search_can(policy, lag):
    found = plan("network=dcgan", f"policy={policy}", "platform=cpu-avx2")
    assert found.measure.lag == lag


@pytest.mark.parametrize(
    ("words", "finalists"),
    [
        (["network=dcgan"], 6),
        (["network=dcgan", "policy=metaschedule"], 6),
        (["network=dcgan", "measure.finalists=3"], 3),
        (["network=dcgan", "measure.finalists=0"], 0),
        (["network=dcgan", "compile_only=true"], 0),
        (["network=dcgan", "platform=a100", "compile_only=true"], 0),
        (["network=dcgan", "runner=rpc", "runner.key=board"], 0),
        (["network=dcgan", "objective=energy"], 0),
        ([], 0),
        (["measure.finalists=4"], 4),
    ],
)
def test_the_best_programs_of_a_network_on_this_cpu_are_timed_again(words, finalists, monkeypatch):
    seen = {"seconds": 0.1, "servers": 1}
    monkeypatch.setattr("pruner.cli.tuning.platform.check_health", lambda *_: seen)
    assert plan(*words).measure.finalists == finalists


def test_the_draft_counts_the_cores_of_the_target():
    found = plan("platform=cpu-avx2", "target={kind:llvm,mcpu:haswell,num-cores:7}")
    assert found.analyzer.device.num_cores == 7
    # 7 of the 2 cores that the description has the peak of
    assert found.platform.peak_flops_per_s == found.analyzer.device.peak_flops_per_s * 7 / 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["workload=matmool"], "workload=matmool is unknown"),
        (["workload.m=0"], "workload.m=0"),
        (["budget.trials=0"], "budget"),
        (["policy=nothing"], "policy=nothing is unknown"),
        (["platform=a100"], "platform=a100"),
        (["task_order=best"], "task_order=best"),
        (["spaces=quick"], "spaces=quick"),
        (["workload=file", "workload.path=absent.py"], "no such file"),
        (["plot=[]"], "name at least one run folder"),
        (["list=true"], "list=true lists the tasks"),
        (["experiment=paper_tuning", "platform=cpu"], "use draft.form=hardware"),
        (["plot=absent"], "absent: no trials.jsonl"),
        (["runner=rpc"], "runner.key"),
        (["runner.kind=rpc"], "runner.kind=rpc: choose it by runner=rpc runner.key=KEY"),
        (["measure.device=1"], "measure.device=1: it chooses among OpenCL devices"),
        (["platform=a100", "measure.device=1"], "CUDA_VISIBLE_DEVICES"),
        (["network=dcgan", "workload.dtype=float16"], "workload.dtype=float16: it is of operators"),
        (["policy=random", "model=tensetmlp"], "model=tensetmlp: nothing would use it; it needs"),
        (["verify=false", "model.width=8"], "model.width=8: nothing would use it; it needs"),
        (["network=dcgan", "effort=draft", "model=xgboost"], "model=xgboost: effort=draft has"),
        (["warm_start=absent"], "warm_start=absent: no database_tuning_record.json there"),
        (["workload.weight=heavy"], "workload.weight=heavy: it must be a number above 0"),
        (["input=1x3"], "add network=NAME"),
        (["network=dcgan", "effort=draft", "compile_only=true"], "effort=draft measures and lea"),
        (["network=dcgan", "effort=draft", "warm_start=[a]"], "effort=draft measures and learns"),
        (["precision=float16"], "leave precision= out: it is of a network (network=NAME)"),
        (["network=dcgan", "effort=draft", "policy=random"], "policy=random: effort=draft has a"),
        (["network=dcgan", "effort=draft", "policy.first=lm"], "policy.first=lm: effort=draft has"),
        (["policy=ansor", "policy.first=lm"], "this policy has no draft"),
        (["network=dcgan", "objective=edp"], "objective=edp: a network is tuned for latency"),
        (["network=dcgan", "objective=[latency]", "effort=draft", "warm_start=[a]"], "learns"),
        (
            ["measure.finalists=-1"],
            "it must be a whole number, 0 or more, or null",
        ),
        (["variants=true", "policy=ansor_tvm"], "variants=true: Ansor tunes no networks; leave"),
        (["variants=true", "platform=opencl"], "not built for OpenCL yet; leave it out"),
        (["variants=true", "effort=draft", "target={kind:cuda}"], "kind cuda does not fit"),
        (["variants=true", "objective=edp"], "objective=edp: a network is tuned for latency"),
        (["variants=true", "workload=list"], "workload=list: variants=true takes one operator"),
        (["variants=true", "workload=file"], "workload=file: variants=true takes named operators"),
        (["variants=true", "workload.dtype=float16"], "takes operators of float32; leave variants"),
        (["variants=true", "workload.m=0"], "workload.m=0: matmul needs a whole number"),
        (["variants=true", "list=true"], "add network=NAME"),
        (["variants=true", "checkpoint=absent"], "absent"),
        (["network=dcgan", "effort=draft", "measure.finalists=4"], "effort=draft measures nothing"),
        (["objective=[size,latency]"], "it must be latency, energy, edp, [latency,size] or"),
        (["objective=size"], "it must be latency, energy, edp, [latency,size] or"),
    ],
)
def test_mistakes_end_in_one_line(monkeypatch, capsys, tmp_path, options, told):
    from pruner.cli.shared.door import run_door

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        run_door("tune", options)
    lines = capsys.readouterr().err.splitlines()
    assert told in lines[-1]
    assert not list(tmp_path.iterdir())


BOARD = "target={kind:llvm,mtriple:aarch64-linux-gnu,mcpu:cortex-a72,num-cores:4}"


def test_a_missing_linker_is_told_before_any_work(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("shutil.which", lambda name: None)
    options = ["network=dcgan", "effort=draft", BOARD]
    test_mistakes_end_in_one_line(monkeypatch, capsys, tmp_path, options, "needs aarch64-linux-gnu")


def test_formulas_and_variants_need_a_described_device(monkeypatch, tmp_path):
    from pruner.cli.tuning import network, read_options

    for module in (network, read_options):
        monkeypatch.setattr(module, "load_draft", lambda *_: None)
    with pytest.raises(PrunerError, match=r"policy=gradient follows .* needs a description"):
        plan("policy=gradient", "platform=cpu-avx2")
    config = composed("tune", "network=dcgan", "variants=true")
    with pytest.raises(PrunerError, match=r"variants=true: the draft .* needs a description"):
        network.network_tasks(config, SimpleNamespace(device="cpu"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_operator_with_variants_is_the_network_of_a_file(monkeypatch, tmp_path):
    """torch's equivalent with the inputs of the operator, in their order: A, B and a bias."""
    from pruner.cli import tune
    from pruner.cli.shared.door import command_config
    from pruner.cli.tuning import measured_run
    from pruner.tune.networks import signature

    def ended(*_, **__):
        raise KeyboardInterrupt

    seen = []
    monkeypatch.setattr(measured_run, "tune_run", lambda *given: seen.append(given) or {})
    sizes = ["workload.m=3", "workload.n=4", "workload.k=5", "workload.epilogue=[bias,relu]"]
    words = ["workload=matmul", *sizes, "variants=true", "platform=cpu-avx2", f"outputs={tmp_path}"]
    with command_config("tune", [*words, "run_id=run"]) as config:
        with monkeypatch.context() as during:
            during.setattr(signature, "exported", ended)
            with pytest.raises(KeyboardInterrupt):
                tune.run(config, None)
        # resumed, it writes the file that it lacks
        resumed = read_config(tmp_path / "tune" / "run" / CONFIG_FILE)
        tune.run(resumed, tmp_path / "tune" / "run")
        assert resumed.policy.verify.population == 128  # that of networks
    ((config, _, folder),) = seen
    assert folder == tmp_path / "tune" / "run"
    assert config.network == str(folder / "matmul_bias_relu_3_4_5.pt2")
    assert config.layout == "NCHW"
    program = torch.export.load(config.network)
    a, b, bias = program.example_inputs[0]
    assert [one.shape for one in (a, b, bias)] == [(3, 5), (5, 4), (4,)]
    wanted = np.maximum(a.numpy() @ b.numpy() + bias.numpy(), 0)
    assert program.module()(a, b, bias).numpy() == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    # a resumed run has the configuration of a network
    assert read_config(folder / CONFIG_FILE).network == config.network


def test_a_finished_run_takes_no_more_and_says_how_to_get_its_missing_library(tmp_path):
    from pruner.cli.tuning.measured_run import _check_unfinished

    options = SimpleNamespace(budget=TuneBudget(trials=4), compile_only=True)
    for compiled, finished in ((4, True), (3, False)):  # that one's time was over
        counts = {"trials": 0, "compiled": compiled, "failed": 0, "total_seconds": 9.0}
        save_metrics(tmp_path, {**counts, "seconds": {"build": 9.0}})
        if finished:
            with pytest.raises(PrunerError, match=r"finished \(4 programs compile\); start a new"):
                _check_unfinished(tmp_path, SimpleNamespace(network=None), options, 5)
        else:
            _check_unfinished(tmp_path, SimpleNamespace(network=None), options, 5)
    config = SimpleNamespace(network="resnet18")
    options = SimpleNamespace(budget=TuneBudget(trials=4), compile_only=False)
    save_metrics(tmp_path, {"trials": 4, "seconds": {"run": 9.0}, "total_seconds": 9.0})
    build = f"budget.trials=, or build its network with pruner deploy run={tmp_path}"
    with pytest.raises(PrunerError, match=f"{build}$"):
        _check_unfinished(tmp_path, config, options, 5)
    (tmp_path / "deploy.json").touch()
    with pytest.raises(PrunerError, match=r"budget\.trials=$"):
        _check_unfinished(tmp_path, config, options, 5)


@pytest.mark.parametrize(
    ("finalists", "seconds", "finished"),
    [(0, 525.0, False), (0, 545.0, True), (6, 525.0, True), (6, 500.0, False)],
)
def test_a_run_is_finished_by_the_seconds_of_its_search(tmp_path, finalists, seconds, finished):
    """Of 600 s; six finalists of five tasks have 40 s, of which they may need little."""
    from pruner.cli.tuning.measured_run import _check_unfinished

    measure = MeasureSettings(finalists=finalists)
    budget = TuneBudget(trials=4000, seconds=600.0)
    options = SimpleNamespace(budget=budget, compile_only=False, measure=measure)
    save_metrics(tmp_path, {"trials": 9, "seconds": {"run": 1.0}, "total_seconds": seconds})
    refused = pytest.raises(PrunerError, match=r"give more with budget\.seconds=")
    with refused if finished else nullcontext():
        _check_unfinished(tmp_path, SimpleNamespace(network=None), options, 5)
