"""experiments/adaptation/run.py: every method has its place, every row its pair."""

import csv
import inspect

import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf

from pruner.cli.shared.known import read_fields
from pruner.errors import PrunerError


def test_every_method_runs_between_k80_and_v100_the_main_ones_everywhere(script, repository):
    item = script("adaptation")
    files = [path.stem for path in (repository / "conf/adaptation").glob("*.yaml")]
    known = sorted([*files, *item["VARIANTS"]])
    pairs = [item["Pair"](source=a, target=b) for a, b in (*item["GPU_PAIRS"], *item["CPU_PAIRS"])]
    methods = {pair.key: pair.methods for pair in pairs}
    assert len(methods) == 11
    assert methods.pop("k80-v100") == methods.pop("v100-k80") == known
    assert set(methods.values()) == {item["MAIN"]}
    assert set(item["MAIN"]) < set(known)


def test_pairs_are_taken_once_and_a_given_source_model_has_its_own_rows(script):
    pair = script("adaptation")["Pair"]
    assert pair(source="k80", target="v100").key == "k80-v100"
    named = pair(source="k80", target="v100", model="pam_k80_1500")
    assert (named.key, named.title) == ("k80-pam_k80_1500-v100", "k80 (pam_k80_1500) to v100")
    pairs_of = script("adaptation")["pairs_of"]
    assert [pair.key for pair in pairs_of(["v100-k80", "mi50-k80", "v100-k80"], "")] == [
        "v100-k80",
        "mi50-k80",
    ]
    assert len(pairs_of(None, "")) == 11
    with pytest.raises(PrunerError, match="pairs=k80-v10 is unknown; known: k80-v100"):
        pairs_of(["k80-v100", "k80-v10"], "")


def test_rows_of_a_pair_are_replaced_and_what_was_given_stays(script, tmp_path):
    table, merge = tmp_path / "table.csv", script("adaptation")["merge"]

    def rows(pair, *areas):
        return [{"pair": pair, "method": "moa", "area": area} for area in areas]

    merge(table, rows("b to c", "1", "2"))
    given = rows("a to b", "3")
    merge(table, given)
    assert given == rows("a to b", "3")  # its caller reads the pair's cells by it
    merge(table, rows("b to c", "4"))
    found = list(csv.DictReader(table.read_text().splitlines()))
    assert found == rows("a to b", "3") + rows("b to c", "4")


class Recorded:
    """Commands that are noted instead of run, and end as told."""

    def __init__(self, code=0):
        self.code, self.lines = code, []

    def run(self, command, log):
        log.write_text("reading\nerror: no such thing\n" if self.code else "fine\n")
        self.lines.append(command)
        return self.code


def test_a_pair_is_told_what_decides_its_results_again_when_it_goes_on(script, tmp_path):
    item = script("adaptation")
    pair = item["Pair"](source="k80", target="v100")
    words = ["data.root=/records", "seeds=[0]", "method=[moa,moa_m50]", f"out={tmp_path}"]
    commands, given = Recorded(), read_fields(item["Options"], words)
    folder = item["run_pair"](pair, given, commands)
    assert folder == tmp_path / "adapt" / "book-k80-v100"
    folder.mkdir()
    (folder / "config.yaml").touch()
    item["run_pair"](pair, given, commands)
    deciding = {
        "data.root=/records", "seeds=[0]", "method=[moa,moa_m50]", "budget=default", "policy=pool",
        "+variants.moa_m50={of:moa,momentum:0.5}",
    }  # fmt: skip
    first, again = ({*line[2:]} for line in commands.lines)
    assert first & again == deciding
    assert again - first == {f"resume={folder}"}
    assert {"source=k80", "target=v100", "run_id=book-k80-v100"} < first


def test_a_failed_pair_is_told_in_one_line(script, repository, tmp_path, capsys):
    item = script("adaptation")
    pair = item["Pair"](source="cpu-sse4", target="cpu-avx2")
    commands = Recorded(code=2)
    given = read_fields(item["Options"], ["data.root=records", f"out={tmp_path}"])
    assert item["run_pair"](pair, given, commands) is None
    assert "cpu-sse4 to cpu-avx2: error: no such thing; log: " in capsys.readouterr().err
    assert f"data.root={repository / 'datasets/bundled'}" in commands.lines[0]


def test_variants_are_arguments_that_the_methods_take(script):
    from pruner.cli.adapt import known_methods

    variants = script("adaptation")["VARIANTS"]
    given = {name: OmegaConf.create(text.replace(":", ": ")) for name, text in variants.items()}
    known = known_methods({name: OmegaConf.to_container(one) for name, one in given.items()})
    for name in variants:
        method = get_class(known[name]["_target_"])
        assert set(known[name]) - {"_target_"} <= set(inspect.signature(method).parameters)
    assert known["moa_m50"]["momentum"] == 0.5
