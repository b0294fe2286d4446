"""Primitive tokens of programs as tensors: tables of skeletons, and numbers of programs."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pruner.features.primitives import NUM_COLUMNS, NUM_STEPS, PrimitiveTokens

NUM_PLACES = NUM_STEPS * NUM_COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTokens:
    """Tokens of programs over skeletons; see :class:`pruner.features.primitives.PrimitiveTokens`.

    The tables stay whole when programs are taken: they are small beside the programs.
    """

    structure: Float[Tensor, "skeleton step column"]
    place: Int[Tensor, "skeleton decision"]
    skeleton: Int[Tensor, " program"]
    number: Float[Tensor, "program decision"]

    @staticmethod
    def of(tokens: PrimitiveTokens) -> "ProgramTokens":
        """The same tokens as tensors."""
        return ProgramTokens(
            structure=torch.from_numpy(tokens.structure),
            place=torch.from_numpy(tokens.place),
            skeleton=torch.from_numpy(tokens.skeleton),
            number=torch.from_numpy(tokens.number),
        )

    def arrays(self) -> PrimitiveTokens:
        """The same tokens as arrays."""
        return PrimitiveTokens(
            structure=self.structure.numpy(),
            place=self.place.numpy(),
            skeleton=self.skeleton.numpy(),
            number=self.number.numpy(),
        )

    def take(self, index: Int[Tensor, " program"]) -> "ProgramTokens":
        """The given programs."""
        return replace(self, skeleton=self.skeleton[index], number=self.number[index])

    def to(self, device: Any, **kwargs: Any) -> "ProgramTokens":
        """The same tokens on another device."""
        return ProgramTokens(
            structure=self.structure.to(device, **kwargs),
            place=self.place.to(device, **kwargs),
            skeleton=self.skeleton.to(device, **kwargs),
            number=self.number.to(device, **kwargs),
        )

    def place_means(
        self, group: Int[Tensor, " program"], num_groups: int
    ) -> Float[Tensor, "group place"]:
        """Mean decision at every place (step x column) over the programs of each group.

        Zero where no program of the group decides. Known by place, not by skeleton, so the means
        of a task serve any other store of its programs.
        """
        place = self.place[self.skeleton]
        there = place >= 0
        flat = (group[:, None] * NUM_PLACES + place)[there]
        total = self.number.new_zeros(num_groups * NUM_PLACES)
        total.index_add_(0, flat, self.number[there])
        count = torch.bincount(flat, minlength=len(total)).clamp(min=1)
        return (total / count).view(num_groups, NUM_PLACES)

    def minus(
        self, means: Float[Tensor, "group place"], group: Int[Tensor, " program"]
    ) -> "ProgramTokens":
        """The same programs with the means of their groups taken away from the decisions."""
        place = self.place[self.skeleton]
        mean = means[group[:, None], place.clamp(min=0)] * (place >= 0)
        return replace(self, number=self.number - mean)

    def dense(
        self,
    ) -> tuple[Float[Tensor, "program step column"], Bool[Tensor, "program step"]]:
        """Token blocks, cut to the longest program, and which steps are real."""
        tokens = self.structure[self.skeleton].flatten(1)
        place = self.place[self.skeleton]
        # Decisions that have no place go to one more column, which is then dropped.
        spare = torch.cat([tokens, tokens.new_zeros(len(tokens), 1)], dim=1)
        spare.scatter_(1, torch.where(place < 0, tokens.shape[1], place), self.number)
        blocks = spare[:, :-1].view(-1, NUM_STEPS, NUM_COLUMNS)
        real = (self.structure != 0).any(dim=2)[self.skeleton]
        longest = max(1, int(real.sum(dim=1).max())) if len(real) else 1
        return blocks[:, :longest], real[:, :longest]
