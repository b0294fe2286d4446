"""experiments/adaptation/run.py: every method has its place, every row its pair."""

import csv


def test_every_method_is_run_once_and_ablations_on_two_pairs_only(script, repository):
    item = script("adaptation")
    pairs = [*item["GPU_PAIRS"], *item["CPU_PAIRS"]]
    main, ablations, rest = item["passes"](pairs)
    assert main[1] == rest[1] == pairs
    assert ablations[1] == [("k80", "v100"), ("v100", "k80")]
    known = sorted(path.stem for path in (repository / "conf/adaptation").glob("*.yaml"))
    assert sorted([*main[0], *ablations[0], *rest[0]]) == known


def test_rows_of_a_pair_are_replaced_and_what_was_given_stays(script, tmp_path):
    table, merge = tmp_path / "table.csv", script("adaptation")["merge"]

    def rows(pair, *areas):
        return [{"pair": pair, "method": "moa", "area": area} for area in areas]

    merge(table, "b to c", rows("b to c", "1", "2"))
    given = rows("a to b", "3")
    merge(table, "a to b", given)
    assert given == rows("a to b", "3")  # its caller reads the pair's cells by it
    merge(table, "b to c", rows("b to c", "4"))
    assert list(csv.DictReader(table.open())) == rows("a to b", "3") + rows("b to c", "4")
