"""The analyzer that drafts for a platform: its own, for as many cores as the target has."""

from __future__ import annotations

from dataclasses import replace

from pruner.models.analyzer.analyzer import Analyzer, AnyForm, CpuAnalyzer, load_analyzer
from pruner.places import conf_folder
from pruner.tune.measure.measurer import Platform


def platform_analyzer(platform: Platform, form: AnyForm = "hardware") -> Analyzer:
    """The analyzer of a platform, for as many cores as its target has.

    Raises:
        DataError: no such platform, or nothing to draft with.
        PrunerError: a form that is for GPUs was asked for a CPU.
    """
    analyzer = load_analyzer(conf_folder(), platform.name, form=form)
    if isinstance(analyzer, CpuAnalyzer):
        return replace(analyzer, device=replace(analyzer.device, num_cores=platform.cores))
    return analyzer
