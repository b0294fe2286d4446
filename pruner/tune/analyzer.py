"""The analyzer that drafts for a platform."""

from __future__ import annotations

from dataclasses import replace

from pruner.models.analyzer.analyzer import Analyzer, AnyFormula, CpuAnalyzer, load_analyzer
from pruner.paths import conf_folder
from pruner.tune.measure.measurer import Platform


def platform_analyzer(platform: Platform, form: AnyFormula = "hardware") -> Analyzer:
    """Load the analyzer of a platform, for its target's number of cores.

    Raises:
        DataError: no such platform, or nothing to draft with.
        PrunerError: a form for GPUs was chosen for a CPU.
    """
    analyzer = load_analyzer(conf_folder(), platform.name, form=form)
    if isinstance(analyzer, CpuAnalyzer):
        # the description is of all cores, the target may use fewer
        return replace(analyzer, device=replace(analyzer.device, num_cores=platform.cores))
    return analyzer
