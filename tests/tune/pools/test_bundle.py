"""What others need of a finished collection is copied, and nothing else."""

import gzip
import json
import shutil

import pytest

from pruner.cli.shared.door import run_door
from pruner.errors import PrunerError
from pruner.tune.pools.records import bundle
from tests.checksums import assert_checksums
from tests.paths import DATASETS


pytestmark = pytest.mark.tvm
POOLS = (("cpu-sse4", "softmax_64_1000"), ("cpu-avx2", "matmul_128_128_128"))


@pytest.fixture
def collection(tmp_path):
    """Two finished pools with what a collection leaves beside them."""
    out = tmp_path / "pools"
    shutil.copytree(DATASETS / "bundled/design_spaces", out / "design_spaces")
    for platform, task in POOLS:
        for folder, suffix in (("measure_records", ".json.gz"), ("pools", ".jsonl")):
            (out / folder / platform).mkdir(parents=True, exist_ok=True)
            (out / folder / platform / f"{task}{suffix}").touch()
        name = f"measure_records/{platform}/{task}.json.gz"
        shutil.copyfile(DATASETS / "bundled" / name, out / name)
    about = json.loads((DATASETS / "bundled/about.json").read_text())
    about["pools"] = [p for p in about["pools"] if (p["platform"], p["task"]) in POOLS]
    about["machine"]["kernel"] = "6.1-of-this-host"
    (out / "about.json").write_text(json.dumps(about))
    return out


def test_records_their_spaces_and_what_was_measured_are_copied(collection, tmp_path):
    found, copy = bundle(collection, tmp_path / "set"), tmp_path / "set"
    names = [f"measure_records/{platform}/{task}.json.gz" for platform, task in POOLS]
    lines = [
        json.loads(line)
        for name in names
        for line in gzip.decompress((collection / name).read_bytes()).splitlines()
    ]
    spaces = {line["i"][1][1][0][1] for line in lines}
    assert found == {"pools": 2, "records": len(lines), "spaces": len(spaces)}
    names += [f"design_spaces/{space}.json.gz" for space in spaces]
    files = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert files == {*names, "about.json", "SHA256SUMS"}
    assert all((copy / name).read_bytes() == (collection / name).read_bytes() for name in names)
    about = json.loads((copy / "about.json").read_text())
    told = json.loads((collection / "about.json").read_text())
    assert told["machine"].pop("kernel")
    assert about == told
    assert_checksums(copy)


def test_an_unfinished_collection_and_a_folder_that_is_there_are_refused(collection, tmp_path):
    platform, task = POOLS[0]
    path = collection / f"measure_records/{platform}/{task}.json.gz"
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join(lines[1:])))  # of fewer programs than it has by now
    with pytest.raises(PrunerError, match=f"{platform} {task} is not finished"):
        bundle(collection, tmp_path / "set")
    path.unlink()
    with pytest.raises(PrunerError, match=f"{platform} {task} is not finished"):
        bundle(collection, tmp_path / "set")
    assert not (tmp_path / "set").exists()
    with pytest.raises(PrunerError, match="exists and is left alone"):
        bundle(collection, collection)
    with pytest.raises(PrunerError, match=r"no about\.json in it"):
        bundle(tmp_path, tmp_path / "set")


def test_the_command_bundles_without_workloads(collection, tmp_path, capsys):
    run_door("collect", ["backend=tvm", f"out={collection}", f"bundle={tmp_path / 'set'}"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["pools"] == 2
    assert result["out"] == str(tmp_path / "set")
