"""experiments/adaptation/run.py: every method has its place."""

import runpy


def test_every_method_is_run_once_and_ablations_on_two_pairs_only(repository):
    item = runpy.run_path(str(repository / "experiments/adaptation/run.py"))
    pairs = [*item["GPU_PAIRS"], *item["CPU_PAIRS"]]
    main, ablations, rest = item["passes"](pairs)
    assert main[1] == rest[1] == pairs
    assert ablations[1] == [("k80", "v100"), ("v100", "k80")]
    known = sorted(path.stem for path in (repository / "conf/adaptation").glob("*.yaml"))
    assert sorted([*main[0], *ablations[0], *rest[0]]) == known
