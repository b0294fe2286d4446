"""Finding DAGs by workload key."""

from pathlib import Path

import pytest

import pruner.program.replay as module
from pruner.data.tenset.task_pickle import PickledTask
from pruner.errors import DataError, UnsupportedProgram
from pruner.program.dag.dag import dag_text
from pruner.program.dag.tenset import dag_from_json
from pruner.program.replay import TaskIndex, find_dag
from tests.program.saved_graph import SavedGraph
from tests.program.tenset_tasks import golden_tasks, unique_tasks


def copy_graph(extent: int) -> str:
    g = SavedGraph()
    a = g.placeholder("A", extent)
    i = g.axis("i", g.int_(extent))
    return g.text(a, g.compute("B", [i], g.load(a, g.var_of(i))))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two task files of two tasks each; reading them is recorded in ``reads.txt``."""
    contents = {"a.task.pkl": [1, 2], "b.task.pkl": [2, 3]}
    for name in contents:
        (tmp_path / name).touch()

    def read(path: Path) -> list[PickledTask]:
        with (tmp_path / "reads.txt").open("a") as log:
            log.write(path.name[0])
        return [
            PickledTask(
                workload_key=f'["k{extent}"]',
                target="llvm",
                weight=1,
                compute_dag=copy_graph(extent),
            )
            for extent in contents[path.name]
        ]

    monkeypatch.setattr(module, "read_task_pickle", read)
    return tmp_path


def test_files_are_read_only_as_far_as_needed(folder: Path) -> None:
    index = TaskIndex(folder)
    reads = folder / "reads.txt"
    assert not reads.exists()
    assert index.dag('["k1"]').stages[0].shape == (1,)
    assert reads.read_text() == "a"
    assert index.dag('["k3"]').stages[0].shape == (3,)
    assert reads.read_text() == "ab"
    assert index.dag('["k1"]') is index.dag('["k1"]')
    assert reads.read_text() == "ab"
    assert index.dag('["k2"]').stages[0].shape == (2,)
    assert reads.read_text() == "aba"  # read again rather than kept in memory


def test_unknown_keys_are_refused(folder: Path) -> None:
    index = TaskIndex(folder)
    with pytest.raises(UnsupportedProgram, match="k9") as caught:
        index.dag('["k9"]')
    assert caught.value.reason == "unknown-task"


def test_a_folder_without_task_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="network_info"):
        TaskIndex(tmp_path)


def test_standard_operators_need_no_index(folder: Path) -> None:
    dag = find_dag('["matmul_layer", 2, 3, 4]', ("relu",))
    assert [stage.shape for stage in dag.stages] == [(2, 3), (3, 4), (2, 4), (2, 4)]
    assert find_dag('["k1"]', (), TaskIndex(folder)).stages[1].name == "B"


@pytest.mark.parametrize(
    ("key", "fused", "reason"),
    [
        ('["k1"]', (), "unknown-task"),
        ('["k1"]', ("relu",), "unknown-epilogue"),
        ('["matmul_layer", 1]', (), "bad-arguments"),
        ("{}", (), "bad-workload-key"),
    ],
)
def test_refusals_name_a_reason(key: str, fused: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UnsupportedProgram) as caught:
        find_dag(key, fused)
    assert caught.value.reason == reason


def test_records_of_tenset_find_their_dag(network_info: Path, shared: Path) -> None:
    index = TaskIndex(network_info)
    for golden in golden_tasks(shared)[::20]:
        assert dag_text(index.dag(golden.workload_key)) == golden.dag_text, golden.name


@pytest.mark.slow
def test_a_key_has_the_same_dag_on_every_target(network_info: Path) -> None:
    dags: dict[str, object] = {}
    for (_, key), task in unique_tasks(network_info).items():
        dag = dag_from_json(task.compute_dag)
        assert dags.setdefault(key, dag) == dag
    assert len(dags) == 350
