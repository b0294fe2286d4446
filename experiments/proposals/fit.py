"""Train a proposal network on measured programs.

Two losses are added, with the same weights: a program of a task weighs ``speed ** sharpness``,
where speed is best latency / latency, and the weights of a task sum to 1.

* *likelihood*: the weighted negative log likelihood, as TLM is tuned on fast programs;
* *choice*: the weighted negative log share of each program, where the likelihood ratios of the
  measured programs of a task are normalised over these programs. The measured programs were drawn
  from the prior, so both losses have the same minimum; the second also learns from the slow
  programs. It is the loss of direct preference optimisation (Rafailov et al., 2023) for a list.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pruner.arrays import Floats
from pruner.models.proposals.decision_tokens import TokenSequences
from pruner.models.proposals.proposal_model import (
    ProposalModel,
    ProposalNetwork,
    log_likelihoods,
    prior_of,
)
from pruner.progress import Log, silent


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskSequences:
    """The measured programs of a task: sequences and ``latency_s`` [N] by design space."""

    parts: tuple[TokenSequences, ...]
    latency_s: tuple[Floats, ...]

    def drawn(self, num: int, generator: torch.Generator) -> TaskSequences:
        """Draw at most `num` programs, the same share of each part."""
        total = sum(map(len, self.latency_s))
        if total <= num:
            return self
        parts, latency_s = [], []
        for part, seconds in zip(self.parts, self.latency_s, strict=True):
            order = torch.randperm(len(seconds), generator=generator).numpy()
            rows = order[: max(1, round(num * len(seconds) / total))]
            names = ("chosen", "prior", "columns")
            parts.append(replace(part, **{name: getattr(part, name)[rows] for name in names}))
            latency_s.append(seconds[rows])
        return TaskSequences(parts=tuple(parts), latency_s=tuple(latency_s))

    def weights(self, sharpness: float) -> Tensor:
        """Weigh all programs of the parts; the weights sum to 1."""
        log_speed = -torch.from_numpy(np.log(np.concatenate(self.latency_s)))
        return (sharpness * log_speed).softmax(0).float()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalRecipe:
    """The training: ``epochs`` over all tasks, ``batch`` tasks a step.

    Of each task at most ``programs`` are drawn for a step. ``sharpness``: exponent of the weights;
    ``choice``: weight of the loss over the programs of a task.
    """

    width: int = 64
    dropout: float = 0.1
    epochs: int = 20
    batch: int = 4
    programs: int = 64
    lr: float = 2e-3
    weight_decay: float = 1e-2
    sharpness: float = 2.0
    choice: float = 1.0


def fit_proposals(
    train: Sequence[TaskSequences],
    valid: Sequence[TaskSequences],
    recipe: ProposalRecipe,
    *,
    seed: int,
    log: Log = silent,
) -> ProposalModel:
    """Train on tasks; keep the epoch of the lowest validation loss, or the last."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        num_space = len(train[0].parts[0].space.columns)
        network = ProposalNetwork(
            num_space=num_space, width=recipe.width, dropout=recipe.dropout
        ).train()
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay
        )
        steps = recipe.epochs * -(-len(train) // recipe.batch)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
        best, kept = np.inf, copy.deepcopy(network.state_dict())
        for epoch in range(recipe.epochs):
            order = torch.randperm(len(train), generator=generator).tolist()
            total = 0.0
            for start in range(0, len(order), recipe.batch):
                some = order[start : start + recipe.batch]
                optimizer.zero_grad()
                for number in some:
                    drawn = train[number].drawn(recipe.programs, generator)
                    loss = task_loss(network, drawn, recipe) / len(some)
                    loss.backward()
                    total += loss.item() * len(some)
                torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                schedule.step()
            judged = mean_loss(network, valid, recipe) if valid else -float(epoch)
            if judged < best:
                best, kept = judged, copy.deepcopy(network.state_dict())
            log(f"epoch {epoch}: loss {total / len(train):.4f}, validation {judged:.4f}")
    network.load_state_dict(kept)
    kinds = frozenset(part.space.kind for task in train for part in task.parts)
    return ProposalModel(network=network.eval(), kinds=kinds, about={"seed": seed})


def task_loss(network: ProposalNetwork, task: TaskSequences, recipe: ProposalRecipe) -> Tensor:
    """Compute the loss of a task; the prior has loss 0."""
    found = [log_likelihoods(network, part) for part in task.parts]
    of_space = torch.stack([score for score, _ in found]).log_softmax(0)
    of_space = of_space + np.log(len(found))  # less the prior: all spaces are drawn alike
    ratio = torch.cat(
        [
            of_space[number] + (log_probs - prior_of(part)).sum(dim=1)
            for number, ((_, log_probs), part) in enumerate(zip(found, task.parts, strict=True))
        ]
    )
    weights = task.weights(recipe.sharpness)
    choice = ratio.log_softmax(0) + np.log(len(ratio))
    return -(weights * (ratio + recipe.choice * choice)).sum()


@torch.inference_mode()
def mean_loss(
    network: ProposalNetwork, tasks: Sequence[TaskSequences], recipe: ProposalRecipe
) -> float:
    """Compute the mean loss of tasks, without dropout."""
    network.eval()
    found = [task_loss(network, task, recipe).item() for task in tasks]
    network.train()
    return float(np.mean(found))
