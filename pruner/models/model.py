"""The interface of every cost model: its capabilities as attributes."""

from typing import ClassVar

from torch import nn


class Model:
    """A cost model and its capabilities; a class states only differing values.

    `needs_fit`: it learns from measurements before it can score. `is_network`: it is trained by
    gradients, so it can be adapted. `grows_online`: it is fitted anew, within seconds, after every
    batch of a tuning run. `reads_primitives`: it scores the sequence of schedule primitives, which
    live design spaces do not have. `num_dataflow_rows`: rows of the dataflow pattern that it
    requires; None where it reads no dataflow. `reads_draft`: it reads the analyzer's columns of a
    program (:mod:`pruner.models.analyzer.columns`), which recorded pools to search do not have.
    """

    needs_fit: ClassVar[bool] = True
    is_network: ClassVar[bool] = False
    grows_online: ClassVar[bool] = False
    reads_primitives: ClassVar[bool] = False
    num_dataflow_rows: int | None = None
    reads_draft: bool = False


class RankingNetwork(Model, nn.Module):
    """A cost model in torch: ``forward(ProgramBatch) -> scores [program]``, higher is faster."""

    is_network = True
