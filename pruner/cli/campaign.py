"""``python -m pruner.cli.campaign``: all that a device is asked, in boxes of minutes."""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from pruner.cli.shared.door import run_door
from pruner.cli.shared.options import plain, several
from pruner.cli.shared.output import as_table, say
from pruner.errors import DataError, PrunerError
from pruner.places import checkpoint_named, conf_folder
from pruner.program.device import GpuDevice, load_device
from pruner.study.device.campaign import Campaign
from pruner.study.device.finding import described_gpu
from pruner.study.device.options import CUDA, CampaignOptions
from pruner.study.device.ready import check_checkpoint, check_folder, environment_of
from pruner.study.device.results import compiled_counts, write_results
from pruner.study.device.sizes import FULL, SMALL, NetworkChoice, Size
from pruner.study.device.state import about_device
from pruner.tune.measure.machine import local_platform
from pruner.tune.pools.conditions import about_gpus

DEVICES = ("cpu", CUDA)
PLACES = ("out", "results", "checkpoint")  # machine-specific; not part of the result


def campaign(config: DictConfig) -> dict[str, Any]:
    """Run the command; returns the object of the last line."""
    start = time.monotonic()
    options = options_of(_as_asked(config) if config.summary else config)
    results = options.out / "results" if config.results is None else Path(config.results).resolve()
    if config.summary:
        return {**_written(options, results), "results": str(results)}
    check_folder(options, small=config.small)
    check_checkpoint(options)
    write = partial(write_results, folder=results)
    if config.plan:
        return _planned(Campaign(options, tell=say, write=write))
    work = Campaign(options, tell=say, write=write, environment=environment_of(options))
    say(f"{options.platform}, into {options.out}; the same command continues it")
    asked = {name: value for name, value in plain(config).items() if name not in PLACES}
    work.run_all({**asked, "platform": options.platform})
    undone = work.undone
    if undone:
        say(f"not done: {'; '.join(undone)}; the same command continues")
    return {
        **_written(options, results),
        "out": str(options.out),
        "results": str(results),
        "undone": undone,
        "seconds": round(time.monotonic() - start, 1),
    }


def _as_asked(config: DictConfig) -> DictConfig:
    """The options with which the folder was begun, those of them that there are today.

    Raises:
        DataError: nothing was begun there.
    """
    asked = about_device(_out(config)).get("asked")
    if not isinstance(asked, dict):
        raise DataError(f"out={config.out}: no campaign was begun there; leave out summary=true")
    known = {name: value for name, value in asked.items() if name in config}
    return cast(DictConfig, OmegaConf.merge(config, known))


def _out(config: DictConfig) -> Path:
    """The folder of the campaign. Raises `PrunerError` where none is named."""
    if not config.out:
        raise PrunerError("out= is empty: name a folder")
    return Path(config.out).resolve()


def options_of(config: DictConfig) -> CampaignOptions:
    """The options as typed values.

    Raises:
        PrunerError: no folder, or an unknown device or platform.
    """
    if config.device not in DEVICES:
        raise PrunerError(f"device={config.device} is unknown; known: {', '.join(DEVICES)}")
    minutes = config.minutes
    return CampaignOptions(
        out=_out(config),
        platform=_platform(config),
        device=config.device,
        minutes=float("inf") if minutes is None else float(minutes),
        compile_only=config.compile_only,
        size=_size(config),
        checkpoint=None
        if config.checkpoint is None
        else checkpoint_named(Path(config.checkpoint)).resolve(),
        stages=several(config.stages),
        more=several(config.more),
    )


def _platform(config: DictConfig) -> str:
    """The platform that is named, or the one that describes this machine's device."""
    folder = conf_folder() / "platform"
    if config.platform is not None:
        known = sorted(path.stem for path in folder.glob("*.yaml"))
        if config.platform not in known:
            raise PrunerError(f"platform={config.platform} is unknown; known: {', '.join(known)}")
        is_gpu = isinstance(load_device(folder / f"{config.platform}.yaml"), GpuDevice)
        if is_gpu != (config.device == CUDA):
            fits = CUDA if is_gpu else "cpu"
            raise PrunerError(
                f"platform={config.platform} is not a {config.device} device; add device={fits}"
            )
        return str(config.platform)
    if config.device == CUDA:
        described = (load_device(path) for path in sorted(folder.glob("*.yaml")))
        return described_gpu(about_gpus(), described)
    return local_platform()


def _size(config: DictConfig) -> Size:
    """In full or small, with the numbers that are given. Raises `PrunerError` for no number."""
    counts = {
        "trials": config.trials,
        "network_trials": config.network_trials,
        "pool": config.pool,
    }
    for name, value in counts.items():
        if value is not None and (type(value) is not int or value < 2):
            raise PrunerError(f"{name}={value}: a whole number, 2 or more, or null")
    given: dict[str, Any] = {name: n for name, n in counts.items() if n is not None}
    if config.networks:
        given["networks"] = [NetworkChoice(name=name) for name in several(config.networks)]
    return replace(SMALL if config.small else FULL, **given)


def _written(options: CampaignOptions, results: Path) -> Mapping[str, int]:
    counts = write_results(options, results)
    say(", ".join(f"{number} rows of {name}" for name, number in counts.items()))
    if not options.compile_only:
        return counts
    built = compiled_counts(options)
    of = sum(built.values())
    if of:  # of pools nothing is known before they are timed
        say(f"{built['compiled']} of {of} programs of operators and networks compile")
    return {**counts, **built}


def _planned(work: Campaign) -> dict[str, Any]:
    rows = work.plan()
    work.tell_left_out()
    say(as_table(rows) if rows else "nothing is left to do")
    minutes = sum(row["minutes"] for row in rows)
    return {"steps": len(rows), "minutes": round(minutes, 1)}


def main() -> None:
    """Open the door."""
    run_door("campaign", campaign)


if __name__ == "__main__":
    main()
