"""What a campaign would run: the commands of its stages, within their minutes, by a toy clock."""

import fcntl
import json
from dataclasses import replace

import pytest

from experiments.common.comparison import Ended
from experiments.gpu.options import FULL, SMALL, CampaignOptions
from experiments.gpu.run import Campaign
from experiments.gpu.stages import GUESSES, STAGES, START_S, boxes
from pruner.errors import PrunerError
from pruner.files import LOCK_FILE, write_json


@pytest.fixture
def options(tmp_path):
    return CampaignOptions(out=tmp_path, platform="h200", minutes=25.0)


def steps_of(options):
    return {step.name: step for box in boxes(options) for step in box.steps()}


class World:
    """Commands that take what is expected of their kind, times ``slower``; none is run."""

    def __init__(self, options, slower=1.0):
        self.now, self.slower, self.began, self.told, self.written = 0.0, slower, [], [], []
        self.campaign = Campaign(
            options,
            log=self.told.append,
            write=lambda _: self.written.append(self.now),
            clock=lambda: self.now,
        )
        self.campaign.command = self.run

    def run(self, step, share_s, limit_s):
        needed = self.slower * step.size * GUESSES[step.kind]
        trials = step.size
        if step.budget:
            trials, needed = step.size * min(1.0, share_s / needed), min(needed, share_s)
        self.began.append((step.name, self.now))
        self.now += min(needed, limit_s)
        if needed > limit_s:
            return Ended(code=None, line="")
        write_json(step.leaves if step.made is None else step.made, {"tasks": {}, "trials": trials})
        return Ended(code=0, line="{}")

    def names(self):
        return [name for name, _ in self.began]


def prepared(options):
    for step in steps_of(options).values():
        step.leaves.parent.mkdir(parents=True, exist_ok=True)
        if step.made is not None:
            step.made.parent.mkdir(parents=True, exist_ok=True)
    return options


def test_the_shares_of_all_stages_are_the_minutes(options):
    assert sum(share for share, _ in STAGES.values()) == pytest.approx(1.0)
    assert sum(box.seconds for box in boxes(options)) == pytest.approx(25 * 60)
    two = boxes(replace(options, stages=["operators", "sanity"]))
    assert [box.name for box in two] == ["sanity", "operators"]
    assert sum(box.seconds for box in two) == pytest.approx(25 * 60)
    with pytest.raises(PrunerError, match="stages=energy is unknown; known: sanity, operators"):
        boxes(replace(options, stages=["energy"]))


def test_every_policy_gets_the_same_trials_of_the_same_operators(options):
    steps = steps_of(options)
    for group, tasks in (("float32", 5), ("float16", 3)):
        runs = [steps[f"{group}-{policy}"] for policy in ("ours", "metaschedule", "random")]
        for run in runs:
            assert f"budget.trials={58 * tasks}" in run.words
            assert "task_order=round_robin" in run.words
            assert "platform=h200" in run.words
        assert len({word for run in runs for word in run.words if "workload.tasks" in word}) == 1
    half = next(word for word in steps["float16-ours"].words if "workload.tasks" in word)
    assert half.count("dtype: float16") == 3
    single, half = (sorted(one["operator"] for one in group) for group in (FULL.single, FULL.half))
    assert single == ["batch_matmul", "conv2d", "depthwise_conv2d", "matmul", "softmax"]
    assert half == ["batch_matmul", "conv2d", "matmul"]


def test_a_cpu_has_no_half_precision(options):
    names = steps_of(replace(options, device="cpu", platform="cpu-avx2"))
    assert not any("float16" in name for name in names)
    assert "float32-ours" in names
    assert "bert_base-float32" in names


def test_what_only_compiles_runs_nothing_and_builds_the_networks(options):
    steps = steps_of(replace(options, compile_only=True, checkpoint=options.out))
    tuned = [step for step in steps.values() if step.words[0] == "tune"]
    assert all("compile_only=true" in step.words for step in tuned)
    measured = steps_of(options)  # the same folder later: nothing of it counts as done
    assert all(step.leaves != measured[step.name].leaves for step in tuned)
    pools = [step for step in steps.values() if step.words[0] == "collect"]
    assert [step.name for step in pools] == [
        "pools of 12, built", "pools of 48, built", "pools of 192, built",
    ]  # fmt: skip
    assert all("prepare=true" in step.words for step in pools)
    others = sorted(step.name for step in steps.values() if step.words[0] == "deploy")
    networks = ("bert_base", "resnet50")
    built = [f"{name}-{bits}, built" for name in networks for bits in ("float16", "float32")]
    assert others == sorted(built)


def test_a_checkpoint_is_adapted_in_three_ways(options):
    assert "adaptation-moa" not in steps_of(options)
    model = options.out / "model.pt"
    steps = steps_of(replace(options, checkpoint=model))
    for method in ("scratch", "moa", "finetune", "distill"):
        words = steps[f"adaptation-{method}"].words
        assert f"adaptation={method}" in words
        assert (f"checkpoint={model}" in words) == (method != "scratch")


def test_a_stage_without_its_checkpoint_is_told_with_the_fix(options):
    def told(**more):
        world = World(prepared(replace(options, **more)))
        world.campaign.run_campaign({})
        return [line for line in world.told if line.startswith("adaptation: left out")]

    (line,) = told()
    assert "python train.py platform=k80 data.root=DIR makes one" in line
    assert told(checkpoint=options.out / "model.pt") == []
    assert told(stages=["sanity", "finals"]) == []  # nobody asked for it
    assert told(compile_only=True) == []  # nothing is timed there, with or without a model


def test_the_minutes_are_kept_and_what_comes_first_is_there(options):
    world = World(prepared(options))
    world.campaign.run_campaign({})
    assert world.now <= 25 * 60
    names = world.names()
    assert names[:4] == ["sanity", "sanity, beside", "float32-ours", "float16-ours"]
    assert {"float32, beside", "float16, beside", "float32-random", "pools of 12"} <= set(names)
    assert any(name.startswith("bert_base-float16") for name in names)
    assert len(world.written) == len(STAGES)


def test_a_machine_three_times_as_slow_still_ends_in_time_and_reaches_every_stage(options):
    world = World(prepared(options), slower=3.0)
    world.campaign.run_campaign({})
    assert world.now <= 25 * 60
    begun = set(world.names())
    for name, (_, make) in STAGES.items():
        steps = [step.name for step in make(options)]
        assert not steps or begun & set(steps), name


def test_tables_that_cannot_be_made_end_nothing(options):
    world = World(prepared(options))

    def write(_):
        raise KeyError("softmax")

    world.campaign._write = write
    world.campaign.run_campaign({})
    assert any(name.startswith("bert_base-float16") for name in world.names())
    lines = [line for line in world.told if line.startswith("no tables (KeyError: 'softmax')")]
    assert len(lines) == len(STAGES)


def test_the_same_command_goes_on_with_what_is_left(options):
    world = World(prepared(options))
    world.campaign.run_campaign({})
    undone = world.campaign.undone
    assert undone  # pools of 192 programs, for one, take longer
    again = World(replace(options, minutes=float("inf")))
    again.campaign.run_campaign({})
    assert again.names() == undone
    assert again.campaign.undone == []
    assert again.campaign.plan() == []


def test_seconds_of_a_machine_that_only_compiles_are_not_those_of_the_device(options, tmp_path):
    """The folder of a rehearsal on two slow cores, taken to the GPU."""
    World(prepared(replace(options, compile_only=True)), slower=50.0).campaign.run_campaign({})
    assert (tmp_path / "compiled" / "seconds.json").is_file()
    here, anew = World(options).campaign, World(replace(options, out=tmp_path / "new")).campaign
    assert {row["step"]: row["minutes"] for row in here.plan()} == {
        row["step"]: row["minutes"] for row in anew.plan()
    }


def test_runs_that_their_seconds_ended_are_counted_by_their_trials(options):
    """Those of a kind need the same seconds a trial all along, however many of them were cut."""
    world = World(prepared(options), slower=2.0)
    world.campaign.run_campaign({})
    rows = [row for row in world.campaign.times.rows if row["kind"] == "ours"]
    assert rows[0]["size"] < 290  # it was cut
    for row in rows:
        assert row["seconds"] / row["size"] == pytest.approx(2.0 * GUESSES["ours"])


def test_the_plan_has_the_minutes_of_every_step_and_of_its_stage(options):
    rows = World(options).campaign.plan()
    first = rows[0]
    assert (first["box"], first["step"]) == ("sanity", "sanity")
    assert first["minutes"] == pytest.approx((START_S + 3 * 8 * GUESSES["check"]) / 60)
    assert first["of"] == pytest.approx(STAGES["sanity"][0] * 25)


def test_readings_stand_before_and_after_every_step(options, tmp_path):
    world = World(prepared(replace(options, size=SMALL, stages=["sanity"])))
    world.campaign.run_campaign({"device": "cuda"})
    lines = (tmp_path / "readings.jsonl").read_text().splitlines()
    found = [(row["step"], row["when"]) for row in map(json.loads, lines)]
    assert found == [
        (name, when) for name in ("sanity", "sanity, beside") for when in ("before", "after")
    ]
    about = json.loads((tmp_path / "device.json").read_text())
    assert about["asked"] == {"device": "cuda"}
    assert about["machine"]["cores"] >= 1


def test_networks_by_metaschedule_are_done_where_that_is_asked_for(options):
    assert not any(name.endswith("-metaschedule, built") for name in steps_of(options))
    steps = steps_of(replace(options, stages=["rivals"]))
    ours, rival = steps["resnet50-float16"], steps["resnet50-float16-metaschedule"]
    assert set(rival.words) > {"policy=metaschedule", "network=resnet50", "precision=float16"}
    trials = [word for word in ours.words if word.startswith("budget.trials=")]
    assert trials == [word for word in rival.words if word.startswith("budget.trials=")]
    beside = steps["resnet50-float16, rivals"]
    assert f"compare=[{rival.leaves.parent}]" in beside.words
    assert beside.lacks == [ours.name, "resnet50-float16-metaschedule, built"]
    assert beside.leaves != steps_of(options)["resnet50-float16, beside"].leaves
    assert len(steps) == 4 * 4
    assert steps_of(replace(options, stages=["rivals"], compile_only=True)) == {}


def test_what_two_tables_of_the_paper_ask_beside_is_done_where_that_is_asked_for(options):
    assert "float32-adatune" not in steps_of(options)
    steps = steps_of(replace(options, stages=["paper"]))
    ours, rival, long, _ = steps.values()
    assert ours.words == steps_of(options)["float32-ours"].words  # the same run
    assert "policy=adatune" in rival.words
    for start in ("workload.tasks=", "budget.trials="):
        both = [[word for word in step.words if word.startswith(start)] for step in (ours, rival)]
        assert both[0] == both[1] != []
    # GPT-2's second linear: 128 tokens, from 4 x 768 to 768
    assert "workload.tasks=[{operator: matmul, m: 128, n: 768, k: 3072}]" in long.words
    assert steps["reduction, finals"].lacks == ["reduction-ours"]
    world = World(prepared(replace(options, stages=["paper"], minutes=float("inf"))))
    world.campaign.run_campaign({})
    assert world.names() == list(steps)


@pytest.mark.parametrize(("pool", "sizes"), [(192, [12, 48, 192]), (30, [12, 30]), (5, [5])])
def test_pools_grow_and_what_is_there_is_not_counted_again(options, pool, sizes):
    steps = steps_of(replace(options, size=replace(FULL, pool=pool)))
    pools = [step for step in steps.values() if step.words[0] == "collect"]
    assert [step.name for step in pools] == [f"pools of {number}" for number in sizes]
    asked = [word for step in pools for word in step.words if word.startswith("programs=")]
    assert asked == [f"programs={number}" for number in sizes]
    assert sum(step.size for step in pools) == 16 * pool


def test_a_rival_that_has_not_ended_is_not_waited_for(options):
    prepared(options)
    steps = steps_of(options)
    assert "compare=[]" in steps["float32, beside"].words
    write_json(steps["float32-metaschedule"].leaves, {})
    rival = steps["float32-metaschedule"].leaves.parent
    assert f"compare=[{rival}]" in steps_of(options)["float32, beside"].words


def test_one_campaign_at_a_time_works_in_a_folder(options):
    world = World(options)
    with (options.out / LOCK_FILE).open("w") as other:
        other.write("1 elsewhere\n")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(PrunerError, match="process 1 on elsewhere works in it"):
            world.campaign.run_campaign({})
    assert not world.began
