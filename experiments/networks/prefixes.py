"""When a run of ours was as fast as a rival's network in the end, found from built networks.

    python -m experiments.networks.prefixes run=OURS rival=THEIRS drafts=DRAFT

OURS and THEIRS are finished runs of one network, deployed; DRAFT one with effort=draft. Writes
prefixes.json into OURS. The machine must be idle.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from pruner.cli.shared.output import say
from pruner.cli.shared.runs import CONFIG_FILE, read_config
from pruner.cli.shared.script import run_script
from pruner.cli.tuning.network import network_platform
from pruner.files import write_json
from pruner.tune.contenders.lane import Lane
from pruner.tune.contenders.prefixes import PREFIXES_FILE, Prefixes, content
from pruner.tune.networks.drafted import FOLDER as DRAFTS


@dataclass(kw_only=True)
class Options:
    """Run folders; see above."""

    run: str = MISSING
    rival: str = MISSING
    drafts: str = MISSING


def run(options: Options) -> Mapping[str, Any]:
    """Build and time the prefixes; the libraries are removed in the end."""
    ours, rival = Path(options.run).resolve(), Path(options.rival).resolve()
    asked = read_config(ours / CONFIG_FILE)
    work, drafts = ours / "prefixes", Path(options.drafts).resolve() / DRAFTS
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    lane = Lane.of(network_platform(ours, asked))
    points = Prefixes(ours, rival, drafts, work, lane=lane, tell=say).points()
    found = content(points, rival)
    write_json(ours / PREFIXES_FILE, found, indent=1)
    shutil.rmtree(work)
    reached = [point.t_s for point in points if point.whose == "ours" and point.reached]
    return {"points": len(points), "reached_s": min(reached, default=None)}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
