"""Draw programs token by token, and compute the likelihoods of programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from pruner.arrays import Decisions, Floats
from pruner.errors import DataError, PrunerError
from pruner.models.checkpoint.tensors import load_tensors, save_tensors
from pruner.models.proposals.decision_tokens import (
    OPTION_COLUMNS,
    TOKEN_COLUMNS,
    TokenSequences,
    TokenSpace,
    encode,
)
from pruner.paths import checkpoints_folder

FORMAT = 1
_COLUMNS = [list(TOKEN_COLUMNS), list(OPTION_COLUMNS)]


def bundled_weights() -> Path:
    """Return the file of the weights that come with the project."""
    return checkpoints_folder() / "proposals" / "weights.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProposalModel:
    """A trained network, the ``kinds`` of its design spaces, and plain values ``about`` it."""

    network: ProposalNetwork
    kinds: frozenset[str]
    about: dict[str, Any]

    def fits(self, space: TokenSpace | None) -> bool:
        """Check whether a space has tokens of a kind that was trained."""
        return space is not None and space.kind in self.kinds

    @torch.inference_mode()
    def space_log_probs(self, spaces: Sequence[TokenSpace | None]) -> Floats:
        """Log probability of each design space; untrained kinds have score 0."""
        scores = [
            self._begun(space)[0].item() if space is not None and self.fits(space) else 0.0
            for space in spaces
        ]
        return np.asarray(torch.tensor(scores, dtype=torch.float64).log_softmax(0).numpy())

    @torch.inference_mode()
    def draw(
        self, space: TokenSpace, num: int, rng: np.random.Generator
    ) -> tuple[Decisions, Floats]:
        """Draw programs int64 [num, d], with their log likelihood ratios [num] to the prior."""
        rows, ratio = np.tile(space.start, (num, 1)), np.zeros(num)
        _, first, embedded = self._begun(space)
        state = first.expand(num, -1)
        everyone = np.arange(num)
        for place, token in enumerate(space.tokens):
            options = token.options(rows)
            columns = torch.from_numpy(options.columns)
            scores = self.network.scores(state, embedded[place], columns).double().numpy()
            log_probs = options.prior + scores
            log_probs -= np.logaddexp.reduce(log_probs, axis=1, keepdims=True)
            # the largest of logits with Gumbel noise is a draw from their softmax
            chosen = np.argmax(log_probs + rng.gumbel(size=log_probs.shape), axis=1)
            ratio += log_probs[everyone, chosen] - options.prior[everyone, chosen]
            token.decide(rows, options.values[chosen])
            decided = columns[everyone, chosen][:, None]
            state = self.network.advance(embedded[place : place + 1], decided, state)[1]
        return rows, ratio

    @torch.inference_mode()
    def log_ratio(self, space: TokenSpace, rows: Decisions) -> Floats:
        """Log likelihood ratios [N] of vectors [N, d] to the prior; -inf where illegal."""
        sequences, legal = encode(space, rows)
        out = np.full(len(rows), -np.inf)
        if legal.any():
            log_probs = log_likelihoods(self.network, sequences)[1]
            out[legal] = (log_probs - prior_of(sequences)).sum(dim=1).double().numpy()
        return out

    def _begun(self, space: TokenSpace) -> tuple[Tensor, Tensor, Tensor]:
        return self.network.begin(torch.from_numpy(space.columns), stacked(space))

    def save(self, path: Path) -> None:
        """Write the weights in float16, atomically."""
        content = {
            "format": FORMAT,
            "columns": _COLUMNS,
            "arguments": self.network.arguments,
            "kinds": sorted(self.kinds),
            "about": self.about,
            "state": {name: value.half() for name, value in self.network.state_dict().items()},
        }
        save_tensors(path, content)

    @staticmethod
    def load(path: Path) -> ProposalModel:
        """Read weights on the CPU; raises PrunerError without a file of this version."""
        if not path.is_file():
            raise PrunerError(
                f"policy.weights={path}: no such file, so no trained weights; train them: python "
                "-m experiments.proposals.run"
            )
        try:
            content = load_tensors(path)
            if content.get("format") != FORMAT or content["columns"] != _COLUMNS:
                raise DataError("made for other columns than this version has")
            state = {name: value.float() for name, value in content["state"].items()}
            if not all(bool(torch.isfinite(value).all()) for value in state.values()):
                raise DataError("has weights that are no finite numbers")
            with torch.device("meta"):  # costs no memory, whatever width the file claims
                network = ProposalNetwork(**content["arguments"])
            network.load_state_dict(state, assign=True)
            kinds, about = frozenset(map(str, content["kinds"])), dict(content["about"])
        except DataError as error:
            raise DataError(f"policy.weights={path}: {error}; train them again") from error
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise DataError(
                f"policy.weights={path}: no weights of a proposal model; leave the option out"
            ) from error
        return ProposalModel(network=network.eval(), kinds=kinds, about=about)


def stacked(space: TokenSpace) -> Tensor:
    """The columns of all tokens of a space [T, column]."""
    columns = [token.columns for token in space.tokens]
    return torch.from_numpy(np.array(columns, np.float32).reshape(-1, len(TOKEN_COLUMNS)))


def log_likelihoods(network: ProposalNetwork, programs: TokenSequences) -> tuple[Tensor, Tensor]:
    """Score the space, and compute the log probability [N, T] of each decision."""
    space = programs.space
    score, first, embedded = network.begin(torch.from_numpy(space.columns), stacked(space))
    columns, chosen = torch.from_numpy(programs.columns), torch.from_numpy(programs.chosen)
    num, length, _, width = columns.shape
    if not length:
        return score, columns.new_zeros((num, 0))
    decided = columns.gather(2, chosen[..., None, None].expand(-1, -1, 1, width))[:, :, 0]
    state = first.expand(num, -1)
    states = state[:, None]
    if length > 1:
        later, _ = network.advance(embedded[:-1], decided[:, :-1], state)
        states = torch.cat([states, later], dim=1)
    scores = network.scores(states, embedded, columns) + torch.from_numpy(programs.prior)
    return score, scores.log_softmax(dim=2).gather(2, chosen[..., None])[..., 0]


def prior_of(programs: TokenSequences) -> Tensor:
    """The log prior [N, T] of each decision."""
    chosen = torch.from_numpy(programs.chosen)
    return torch.from_numpy(programs.prior).gather(2, chosen[..., None])[..., 0]


class ProposalNetwork(nn.Module):
    """A recurrent network over decision tokens.

    A space (device, operator, counts of instructions, the mean of its tokens) starts the state;
    each decided option moves it; the score of an option depends on the state, the token and the
    option. ``dropout``: of the columns of the space and of the states: the records have few tasks.
    """

    def __init__(self, *, num_space: int, width: int = 64, dropout: float = 0.1) -> None:
        super().__init__()
        self.arguments = {"num_space": num_space, "width": width, "dropout": dropout}
        self.token = nn.Linear(len(TOKEN_COLUMNS), width)
        self.space = nn.Linear(num_space + width, width)
        self.dropout = nn.Dropout(dropout)
        self.start = nn.Linear(width, width)
        self.recurrent = nn.GRU(width + len(OPTION_COLUMNS), width, batch_first=True)
        self.of_state = nn.Linear(width, width)
        self.of_token = nn.Linear(width, width, bias=False)
        self.of_option = nn.Linear(len(OPTION_COLUMNS), width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.space_score = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.space_score.weight)

    def begin(
        self, space: Float[Tensor, " column"], tokens: Float[Tensor, "token column"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Read a design space: score, first state [width], embedded tokens [token, width]."""
        embedded = torch.relu(self.token(tokens))
        mean = embedded.mean(dim=0) if len(tokens) else embedded.new_zeros(self.token.out_features)
        known = torch.relu(self.space(torch.cat([self.dropout(space), mean])))
        return self.space_score(known)[0], torch.tanh(self.start(known)), embedded

    def advance(self, embedded: Tensor, decided: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Move states [N, width] along decided options [N, T, column] of tokens [T, width].

        Returns the states after each token [N, T, width], and the last state.
        """
        inputs = torch.cat([embedded.expand(len(decided), -1, -1), decided], dim=2)
        states, last = self.recurrent(inputs, state[None].contiguous())
        return states, last[0]

    def scores(self, states: Tensor, embedded: Tensor, options: Tensor) -> Tensor:
        """Score options [..., V, column] by states and tokens [..., width]."""
        known = (self.of_state(self.dropout(states)) + self.of_token(embedded))[..., None, :]
        return self.score(torch.relu(known + self.of_option(options)))[..., 0]
