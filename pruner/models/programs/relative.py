"""Features relative to the other candidates of the same task.

A ranker compares schedules of one operator, but absolute features mostly tell operators apart (how
much work, how large the tensors): a model learns what is special about the training operators and
is lost on a new one. Relative features are what remains after the mean over the task's candidates
is taken away, place by place: statement row r of every program minus the mean row r, and the same
for decisions. Scores are then relative to the set of candidates that is scored together; the ten
workload flags and the structure of schedules stay.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pruner.models.programs.batch import NUM_STATEMENT_FEATURES, ProgramBatch


def group_means(
    values: Float[Tensor, "item column"], group: Int[Tensor, " item"], num_groups: int
) -> Float[Tensor, "group column"]:
    """Mean of every group; zeros for a group without items."""
    total = torch.zeros((num_groups, values.shape[1]), dtype=values.dtype)
    total.index_add_(0, group, values)
    count = torch.bincount(group, minlength=num_groups).clamp(min=1)
    return total / count[:, None]


def places(program: Int[Tensor, " row"]) -> Int[Tensor, " row"]:
    """Place of every row inside its program; rows of a program are neighbours.

    >>> places(torch.tensor([0, 0, 0, 1, 1, 2])).tolist()
    [0, 1, 2, 0, 1, 0]
    """
    if not len(program):
        return program
    starts = torch.ones_like(program, dtype=torch.bool)
    starts[1:] = program[1:] != program[:-1]
    order = torch.arange(len(program), device=program.device)
    return order - order[starts][starts.cumsum(0) - 1]


@dataclass(frozen=True, slots=True)
class Center:
    """Mean candidate of one task: `statement` [place, column], `dataflow` [slot, flow].

    `tokens` [place]: mean decisions, where the programs have primitive tokens; `draft` [column]:
    the analyzer's, where they have it.
    """

    statement: Tensor
    dataflow: Tensor
    tokens: Tensor | None = None
    draft: Tensor | None = None

    @staticmethod
    def of(batch: ProgramBatch) -> "Center":
        """The mean of a batch of programs of one task."""
        place = places(batch.program)
        num_places = int(place.max()) + 1 if len(place) else 0
        rows = batch.statement[:, :NUM_STATEMENT_FEATURES]
        return Center(
            group_means(rows, place, num_places),
            batch.dataflow.mean(dim=0),
            None
            if batch.tokens is None
            else batch.tokens.place_means(torch.zeros_like(batch.tokens.skeleton), 1)[0],
            None if batch.draft is None else batch.draft.mean(dim=0),
        )

    def over(self, other: "Center") -> "Center":
        """This mean where it has one, the other's for places that none of its programs had."""
        missing = other.statement[len(self.statement) :]
        return replace(self, statement=torch.cat([self.statement, missing]))

    def relative(self, batch: ProgramBatch) -> ProgramBatch:
        """The batch with this mean taken away."""
        statement = batch.statement.clone()
        statement[:, :NUM_STATEMENT_FEATURES] -= self.statement[places(batch.program)]
        tokens = batch.tokens
        if tokens is not None and self.tokens is not None:
            tokens = tokens.minus(self.tokens[None], torch.zeros_like(tokens.skeleton))
        draft = batch.draft
        if draft is not None and self.draft is not None:
            draft = draft - self.draft
        dataflow = batch.dataflow - self.dataflow
        return replace(batch, statement=statement, dataflow=dataflow, tokens=tokens, draft=draft)
