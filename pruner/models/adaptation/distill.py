"""Distillation: the source model is a teacher in addition to the labels."""

from copy import deepcopy
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from pruner.models.adaptation.base import Adaptation, Setting
from pruner.models.adaptation.fitting import OnlineFit
from pruner.models.programs.batch import LabelledBatch
from pruner.models.programs.program_table import ProgramTable
from pruner.models.training.losses import as_lists
from pruner.models.training.training import build_network

Student = Literal["source", "fresh"]


class Distillation(Adaptation):
    """Rank the labels, and stay near the teacher's scores.

    ``L = L_rank(s, y) + weight T^2 KL(softmax(t / T) || softmax(s / T))``, a distribution over the
    programs of each task; t are the source model's scores (Hinton et al. 2015; on the new task's
    inputs, as in Learning without Forgetting, Li and Hoiem 2016). Every round the student starts as
    the source, or as a fresh network. TCL (arXiv 2604.12891) distils too, into a growing column,
    which is not repeated here.
    """

    name = "distill"

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 1.0,
        temperature: float = 2.0,
        student: Student = "source",
        fit: OnlineFit | None = None,
    ) -> None:
        if student not in ("source", "fresh"):
            raise ValueError(f"distill.student: got {student!r}; known: 'source', 'fresh'")
        if temperature <= 0:
            raise ValueError(f"distill.temperature: got {temperature}; it must be positive")
        super().__init__(setting, fit=fit)
        self.weight = weight
        self.temperature = temperature
        self.student = student
        self._teacher = deepcopy(self.source.network).eval()

    def _learn(self, store: ProgramTable, index: torch.Tensor) -> None:
        if self.student == "fresh":
            self.ranker.network = build_network(self.setting.make_network, self.stream())
        else:
            self.restart()

        def near_teacher(
            batch: LabelledBatch, score: Float[Tensor, " program"]
        ) -> Float[Tensor, ""]:
            # The source's normalisation stays, so the teacher reads the same normalised batch.
            with torch.no_grad():
                teacher = self._teacher(batch.programs)
            return self.weight * distillation(score, teacher, batch.task, self.temperature)

        self.run_fit(store, index, penalty=near_teacher)


def distillation(
    score: Float[Tensor, " program"],
    teacher: Float[Tensor, " program"],
    task: Tensor,
    temperature: float,
) -> Float[Tensor, ""]:
    """Distillation loss of scores against teacher scores, in nats.

    ``T^2 sum over tasks of KL(softmax(t / T) || softmax(s / T))`` with T the `temperature`.
    """
    student, target, mask = as_lists(score / temperature, teacher / temperature, task, "task")
    # A large finite filler: minus infinity minus minus infinity would be NaN.
    log_student = student.masked_fill(~mask, -1e9).log_softmax(dim=1)
    log_target = target.masked_fill(~mask, -1e9).log_softmax(dim=1)
    divergence = functional.kl_div(log_student, log_target, log_target=True, reduction="sum")
    return temperature**2 * divergence
