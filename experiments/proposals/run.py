"""Train the language model of ``policy=propose_lm``, and judge its proposals on unseen tasks.

    python -m experiments.proposals.run [more=[DIR]]

The model learns from the training sides of the three bundled record sets, and from the tasks of
`more` (data roots with design spaces) whose loops have other extents than every validation and test
task. Each seed is a fit; the seed with the lowest loss on the validation tasks is stored in
``checkpoints/proposals/``. The judged tasks are the test sides of the frozen splits. Each pool is
ranked by the likelihood ratio, no program is looked up by similarity; `lm` measures the first k
programs of this order, `draft` the first k by the analyzer, `random` is exact chance.
`draft_of_random` and `draft_of_lm` are the analyzer's first k of 32 programs that are drawn at
random or by the model: the first population of the draft. Finished fits (under work=) are not
repeated. Output: results.csv, summary.csv,
legal.csv and fits.csv in out=.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from experiments.proposals.fit import ProposalRecipe, TaskSequences, fit_proposals, mean_loss
from pruner.arrays import Decisions, Floats
from pruner.cli.shared.output import say
from pruner.cli.shared.script import run_script
from pruner.data.frozen import BUNDLED, FrozenSplit, Side
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError, UnsupportedProgram, unforeseen_refused
from pruner.features.columns import text_flags
from pruner.files import write_checksums, write_table
from pruner.models.analyzer.analyzer import SymbolAnalyzer, load_analyzer
from pruner.models.analyzer.quality import score_task, task_symbols
from pruner.models.judging.judge import expected_ratio
from pruner.models.judging.metrics import ScoredTask
from pruner.models.proposals.decision_tokens import TokenSequences, TokenSpace, encode
from pruner.models.proposals.proposal_model import ProposalModel, bundled_weights
from pruner.paths import conf_folder
from pruner.program.device import Device, load_device
from pruner.program.replay import definitions_of, space_of
from pruner.program.te.skeleton import SkeletonGroup, group_programs
from pruner.program.tir.apply_trace import apply_groups
from pruner.program.tir.postprocs import layouts_permute
from pruner.program.tir.regions import buffer_scopes
from pruner.program.tir.saved import SpaceFolder
from pruner.program.tir.shared import waits_are_numbers
from pruner.program.tir.trace import TraceProgram
from pruner.program.tir.verify import STATIC_BYTES, TirLimits, stages_cover, verify_gpu_code
from pruner.search.offline.adaptation_run import bootstrap_interval
from pruner.search.offline.recorded_run import RecordedSpace
from pruner.search.propose_lm import Proposer
from pruner.study.grid import Job, results
from pruner.tune.spaces.batched.decisions import open_decisions
from pruner.tune.spaces.batched.token_reading import tokens_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SIZES = (1, 8, 64)
POPULATION, DRAWS = 32, 20  # of the first population of the draft, and how often it is drawn
WEIGHTS = "weights.safetensors"


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above."""

    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    more: list[str] = field(default_factory=list)
    epochs: int = 20
    store: bool = True
    work: str = str(ROOT / "outputs" / "proposals")
    out: str = str(HERE)


Shape = tuple[tuple[int, ...], ...]  # extents of the tiles of each design space


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenPool:
    """The measured programs of a task whose design spaces have tokens.

    ``programs`` of the design spaces, and ``limits`` of the GPU; ``decisions`` int64 [N, d]:
    vectors, column 0 is the design space; ``latency_s`` [N]; ``draft`` [N]: scores of the analyzer;
    ``lost``: measured programs without tokens, or with a decision that the masks refuse.
    """

    key: TaskKey
    spaces: tuple[TokenSpace, ...]
    programs: tuple[TraceProgram, ...]
    limits: TirLimits | None
    decisions: Decisions
    sequences: tuple[TokenSequences, ...]
    latency_s: Floats
    draft: Floats
    lost: int

    def __len__(self) -> int:
        return len(self.latency_s)

    @property
    def shape(self) -> Shape:
        """The extents of all tiles, equal for equal work whatever its name."""
        every = {
            tuple(token.extent for token in space.tokens if hasattr(token, "extent"))
            for space in self.spaces
        }
        return tuple(sorted(every))

    @property
    def task(self) -> TaskSequences:
        """The pool for training."""
        latency_s = tuple(
            self.latency_s[self.decisions[:, 0] == n] for n in range(len(self.spaces))
        )
        return TaskSequences(parts=self.sequences, latency_s=latency_s)


def read_pools(root: RecordRoot, platform: str, most: int = 512) -> Iterator[TokenPool]:
    """Read all tasks of a platform that have tokens, at most `most` random programs of each."""
    analyzer = load_analyzer(conf_folder(), platform)
    assert isinstance(analyzer, SymbolAnalyzer)
    device = load_device(conf_folder() / "platform" / f"{platform}.yaml")
    known = definitions_of(root.path)
    with Quarantine() as quarantine:
        for records in root.read(quarantine, platform):
            measured = np.random.default_rng(0).permutation(np.flatnonzero(records.valid))[:most]
            found = records.select(np.sort(measured))
            if not len(found):
                continue
            groups = group_programs(found.steps)[0]
            spaces, programs, sequences, places, vectors = [], [], [], [], []
            width = 1 + max(group.decisions.shape[1] for group in groups)
            for group in groups if known.spaces is not None else ():
                space = _tokens(group, known.spaces, device)
                if space is None:
                    continue
                encoded, legal = encode(space, group.decisions)
                rows = np.zeros((int(legal.sum()), width), np.int64)
                rows[:, 0] = len(spaces)
                rows[:, 1 : 1 + group.decisions.shape[1]] = group.decisions[legal]
                if len(rows):
                    spaces.append(space)
                    programs.append(space_of(known.spaces, group).program)
                    sequences.append(encoded)
                    places.append(group.rows[legal])
                    vectors.append(rows)
            if not spaces:
                continue
            order = np.concatenate(places)
            draft = score_task(task_symbols(found, analyzer, known), analyzer).score
            yield TokenPool(
                key=records.key, spaces=tuple(spaces), programs=tuple(programs),
                limits=_limits(records.target), decisions=np.concatenate(vectors),
                sequences=tuple(sequences), latency_s=found.latency_s[order], draft=draft[order],
                lost=len(found) - len(order),
            )  # fmt: skip


def _tokens(group: SkeletonGroup, spaces: SpaceFolder, device: Device) -> TokenSpace | None:
    """The token space of a group; None for Ansor's, and where not replayed."""
    try:
        with unforeseen_refused():
            saved = space_of(spaces, group)
            decisions = open_decisions(saved.program, group.decisions[0])
            return tokens_of(saved.program, decisions, device, text_flags(saved.text))
    except UnsupportedProgram:
        return None


def _limits(target: str) -> TirLimits | None:
    """The limits of a GPU by a record's target; lanes have static shared memory alone."""
    values = json.loads(target) if target.startswith("{") else {}
    if "max_shared_memory_per_block" not in values:
        return None
    bytes_ = int(values["max_shared_memory_per_block"])
    static = min(bytes_, STATIC_BYTES) if values["kind"] == "cuda" else bytes_
    return TirLimits(
        shared_bytes=static, threads=int(values["max_threads_per_block"]), static_bytes=static
    )


def legal_shares(
    pool: TokenPool, model: ProposalModel, rng: np.random.Generator, num: int = 200
) -> Iterator[dict[str, Any]]:
    """Yield the shares of legal programs of `num` draws of each design space of a GPU's pool.

    ``divisors``: MetaSchedule's draws, whose factors divide the loops; ``masks``: the prior of the
    tokens, which also limits the threads; ``lm``: the model.
    """
    if pool.limits is None:
        return
    untrained = replace(model, network=copy.deepcopy(model.network))
    torch.nn.init.zeros_(untrained.network.score.weight)
    for number, (space, program) in enumerate(zip(pool.spaces, pool.programs, strict=True)):
        free = np.zeros((num, program.num_slots), np.int64)
        mine = pool.decisions[:, 0] == number
        example = pool.decisions[mine][0, 1 : 1 + program.num_slots]
        for decision in open_decisions(program, example).values():
            decision.sample(free, rng)
        draws = {
            "divisors": free,
            "masks": untrained.draw(space, num, rng)[0],
            "lm": model.draw(space, num, rng)[0],
        }
        for how, rows in draws.items():
            yield {"space": number, "draws": how, "legal": _legal(program, rows, pool.limits)}


def _legal(program: TraceProgram, rows: Decisions, limits: TirLimits) -> float:
    """The share of vectors that TVM would accept, as the batched spaces judge it."""
    legal = np.zeros(len(rows), bool)
    for some, tree in apply_groups(program, rows)[0]:
        buffer_scopes(tree)
        whole = layouts_permute(tree) & stages_cover(tree) & waits_are_numbers(tree)
        certain = np.broadcast_to(~np.asarray(tree.uncertain), tree.num_programs)
        legal[some] = certain & verify_gpu_code(tree, limits) & whole
    return float(legal.mean())


@dataclass(frozen=True, kw_only=True)
class Ground:
    """All pools by side of their split; read once they are needed."""

    more: Sequence[str]

    @cached_property
    def sides(self) -> dict[Side, list[TokenPool]]:
        """The pools of each side."""
        out: dict[Side, list[TokenPool]] = {"train": [], "valid": [], "test": []}
        for one in BUNDLED.values():
            split = FrozenSplit.load(one.name, 0)
            assert split is not None
            for pool in _all(one.folder):
                out[split.sides[pool.key.identity]].append(pool)
        held: set[Shape] = {pool.shape for side in ("valid", "test") for pool in out[side]}
        extra = [pool for folder in self.more for pool in _all(Path(folder))]
        out["train"] += [pool for pool in extra if pool.shape not in held]
        for side, pools in out.items():
            say(f"{side}: {len(pools)} tasks, {sum(map(len, pools))} programs")
        return out


def _all(folder: Path) -> Iterator[TokenPool]:
    root = RecordRoot(folder)
    for platform in root.platforms:
        say(f"reading {folder.name} {platform}")
        yield from read_pools(root, platform)


def fit(ground: Ground, recipe: ProposalRecipe, seed: int, folder: Path) -> dict[str, Any]:
    """Train with a seed; returns the losses and the counts of the records."""
    train, valid = ([pool.task for pool in ground.sides[side]] for side in ("train", "valid"))
    model = fit_proposals(train, valid, recipe, seed=seed, log=say)
    platforms = [pool.key.platform for pool in ground.sides["train"]]
    about = {
        "seed": seed,
        "tasks": {name: platforms.count(name) for name in sorted(set(platforms))},
        "programs": sum(map(len, ground.sides["train"])),
        "recipe": asdict(recipe),
    }
    replace(model, about=about).save(folder / WEIGHTS)
    kept = ProposalModel.load(folder / WEIGHTS)  # judged as stored, in float16
    return {
        "seed": seed,
        "valid_loss": mean_loss(kept.network, valid, recipe),
        "train_loss": mean_loss(kept.network, train, recipe),
        "train_tasks": len(train),
        "train_programs": about["programs"],
        "parameters": sum(one.numel() for one in model.network.parameters()),
        "bytes": (folder / WEIGHTS).stat().st_size,
    }


def judge(ground: Ground, seed: int, folder: Path) -> dict[str, Any]:
    """Rows of the test tasks: best latency of the pool over the best of k programs."""
    model = ProposalModel.load(folder / WEIGHTS)
    rng = np.random.default_rng(seed)
    rows, legal = [], []
    for pool in ground.sides["test"]:
        about = {"seed": seed, "platform": pool.key.platform, "task": pool.key.task}
        for method, k, ratio in judged_pool(pool, model, rng):
            rows.append({**about, "method": method, "k": k, "ratio": ratio})
        legal += [{**about, **row} for row in legal_shares(pool, model, rng)]
    return {"rows": rows, "legal": legal}


def judged_pool(
    pool: TokenPool, model: ProposalModel, rng: np.random.Generator
) -> Iterator[tuple[str, int, float]]:
    """Yield method, k, and best of the pool / best of k."""
    space = RecordedSpace(pool.decisions, pool.spaces)
    ratio = Proposer(space, model).log_ratio(pool.decisions)
    draft = np.where(np.isfinite(pool.draft), pool.draft, -np.inf)
    best, weights = pool.latency_s.min(), np.exp(ratio - ratio.max())
    chances = {"random": None, "lm": weights / weights.sum()}
    task = ScoredTask(name=pool.key.task, latency_s=pool.latency_s, score=ratio)

    def best_of(order: np.ndarray, k: int) -> float:
        return float(best / pool.latency_s[order[:k]].min())

    for k in (k for k in SIZES if k < len(pool)):
        yield "random", k, expected_ratio(task, k)
        yield "lm", k, best_of(np.argsort(-ratio, kind="stable"), k)
        yield "draft", k, best_of(np.argsort(-draft, kind="stable"), k)
        if k < POPULATION:
            for name, chance in chances.items():
                found = []
                for _ in range(DRAWS):
                    drawn = np.unique(rng.choice(len(pool), POPULATION, p=chance))
                    found.append(best_of(drawn[np.argsort(-draft[drawn], kind="stable")], k))
                yield f"draft_of_{name}", k, float(np.mean(found))


def summary_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield means over tasks and seeds, by kind of device, and the gain over random programs.

    ``spread``: standard deviation of the seeds' means; ``low`` and ``high``: 95 % interval of the
    gain over tasks.
    """
    table = pd.DataFrame(rows)
    table["device"] = table.platform.where(~table.platform.str.startswith("cpu"), "cpu")
    keys = ["platform", "task"]
    for (device, k), part in table.groupby(["device", "k"]):
        by_task = part.pivot_table(index=keys, columns="method", values="ratio")
        for method in by_task:
            gain = (by_task[method] - by_task["random"]).to_numpy()

            def mean(chosen: np.ndarray, gain: np.ndarray = gain) -> float:
                return float(gain[chosen].mean())

            low, high = bootstrap_interval(len(gain), mean)
            seeds = part[part.method == method].groupby("seed").ratio.mean()
            yield {
                "device": device, "k": k, "method": method, "tasks": len(by_task),
                "ratio": by_task[method].mean(), "spread": seeds.std() if len(seeds) > 1 else 0.0,
                "gain": gain.mean(), "low": low, "high": high,
            }  # fmt: skip


def run(options: Options) -> dict[str, Any]:
    """Fit the missing seeds, judge them, write the tables, and store the best seed."""
    torch.set_num_threads(1)
    if not options.seeds:
        raise PrunerError("seeds=[]: give at least one seed")
    recipe, ground = ProposalRecipe(epochs=options.epochs), Ground(more=options.more)
    about = json.loads(json.dumps({"recipe": asdict(recipe), "more": list(options.more)}))
    fits, tables = [], []
    for seed in options.seeds:
        folder = Path(options.work) / f"seed-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, work, found in (("fit", partial(fit, ground, recipe), fits),
                                  ("judge", partial(judge, ground), tables)):  # fmt: skip
            job = Job(
                name=f"{name} {seed}",
                run=partial(work, seed, folder),
                leaves=folder / f"{name}.json",
                about=about,
            )
            found.extend(results([job]))
    out = Path(options.out)
    best = min(fits, key=lambda one: one["valid_loss"])
    for one in fits:
        one.pop("about")
        one["stored"] = one is best
    write_table(out / "fits.csv", fits, ".4f")
    rows = [row for one in tables for row in one["rows"]]
    write_table(out / "results.csv", rows, ".4f")
    write_table(out / "summary.csv", list(summary_rows(rows)), ".3f")
    write_table(out / "legal.csv", [row for one in tables for row in one["legal"]], ".4f")
    if options.store:
        box = bundled_weights()
        ProposalModel.load(Path(options.work) / f"seed-{best['seed']}" / WEIGHTS).save(box)
        write_checksums(box.parent, [box])
    return {"seed": best["seed"], "valid_loss": best["valid_loss"], "bytes": best["bytes"]}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
