"""experiments/adaptation/run.py: every method has its place, every row its pair."""

import csv


def test_every_method_runs_between_k80_and_v100_the_main_ones_everywhere(script, repository):
    item = script("adaptation")
    known = sorted(path.stem for path in (repository / "conf/adaptation").glob("*.yaml"))
    pairs = [item["Pair"](source=a, target=b) for a, b in (*item["GPU_PAIRS"], *item["CPU_PAIRS"])]
    methods = {pair.key: pair.methods for pair in pairs}
    assert len(methods) == 11
    assert methods.pop("k80-v100") == methods.pop("v100-k80") == known
    assert set(methods.values()) == {item["MAIN"]}
    assert set(item["MAIN"]) < set(known)


def test_a_given_source_model_has_rows_and_runs_of_its_own(script):
    pair = script("adaptation")["Pair"]
    assert pair(source="k80", target="v100").key == "k80-v100"
    named = pair(source="k80", target="v100", model="pam_k80_1500")
    assert (named.key, named.title) == ("k80-pam_k80_1500-v100", "k80 (pam_k80_1500) to v100")


def test_rows_of_a_pair_are_replaced_and_what_was_given_stays(script, tmp_path):
    table, merge = tmp_path / "table.csv", script("adaptation")["merge"]

    def rows(pair, *areas):
        return [{"pair": pair, "method": "moa", "area": area} for area in areas]

    merge(table, "b to c", rows("b to c", "1", "2"))
    given = rows("a to b", "3")
    merge(table, "a to b", given)
    assert given == rows("a to b", "3")  # its caller reads the pair's cells by it
    merge(table, "b to c", rows("b to c", "4"))
    found = list(csv.DictReader(table.read_text().splitlines()))
    assert found == rows("a to b", "3") + rows("b to c", "4")
