"""Jobs that leave a file each."""

import pytest

from pruner.errors import PrunerError
from pruner.files import write_json
from pruner.study.grid import Job, results


def jobs(folder, calls, names="abc", **more):
    def work(name):
        calls.append(name)
        if name in more.get("fails", ""):
            raise PrunerError(f"{name} fails")
        return {"name": name}

    return [
        Job(name=name, leaves=folder / f"{name}.json", run=lambda name=name: work(name))
        for name in names
    ]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_results_come_in_order_and_are_computed_once(tmp_path, num_workers):
    calls = []
    write_json(tmp_path / "b.json", {"name": "from before"})
    grid = [*jobs(tmp_path, calls), Job(name="d", run=lambda: calls.append("d") or "anew")]
    found = list(results(grid, num_workers=num_workers))
    assert found == [{"name": "a"}, {"name": "from before"}, {"name": "c"}, "anew"]
    assert "b" not in calls
    calls.clear()
    assert list(results(grid, num_workers=num_workers)) == found
    assert calls == ["d"]  # which keeps nothing


def test_a_result_of_other_options_is_computed_anew(tmp_path):
    def job(about):
        leaves = tmp_path / "a.json"
        return Job(name="a", leaves=leaves, run=lambda: {"of": about}, about={"trials": about})

    assert job(1).compute() == {"of": 1, "about": {"trials": 1}}
    assert job(1).result == {"of": 1, "about": {"trials": 1}}
    assert job(2).result is None
    assert list(results([job(2)])) == [{"of": 2, "about": {"trials": 2}}]
    assert job(1).result is None


def test_a_job_that_fails_in_its_process_costs_itself(tmp_path):
    grid = jobs(tmp_path, [], fails="a")
    with pytest.raises(PrunerError, match=r"^a: no result; the same command goes on$"):
        list(results(grid, num_workers=2, again="the same command goes on"))
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["b", "c"]


def test_unfinished_work_leaves_no_result(tmp_path):
    for about in (None, {"trials": 1}):
        job = Job(name="a", leaves=tmp_path / "a.json", run=lambda: None, about=about)
        assert job.compute() is None
        assert not (tmp_path / "a.json").exists()
