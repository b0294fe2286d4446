"""Numbering of stages: two cases by hand and the property that inputs come first."""

from hypothesis import given
from hypothesis import strategies as st

from pruner.program.dag.tenset import schedule_order


def test_inputs_come_in_the_order_of_the_expression() -> None:
    # 0 = output reads 1 then 2; 2 reads 3; 1 is an input
    assert schedule_order([[1, 2], [], [3], []], [1, 3, 0]) == ([1, 3, 2, 0], [0])


def test_of_two_outputs_the_one_named_first_goes_first() -> None:
    """Named last, found first, lowest priority: so the first output is numbered first."""
    reads: list[list[int]] = [[], [0], [0]]
    assert schedule_order(reads, [0, 1, 2]) == ([0, 1, 2], [1, 2])
    assert schedule_order(reads, [0, 2, 1]) == ([0, 2, 1], [2, 1])


def test_a_shared_input_is_numbered_once_where_it_is_first_met() -> None:
    # softmax: 3 = exp / sum, where exp reads data and maximum
    data, top, exp, total, out = range(5)
    reads = [[], [data], [data, top], [exp], [exp, total]]
    assert schedule_order(reads, [data, out])[0] == [data, top, exp, total, out]


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    count = draw(st.integers(1, 9))
    return [
        draw(st.lists(st.integers(0, i - 1), unique=True, max_size=3)) if i else []
        for i in range(count)
    ]


@given(graphs())
def test_every_stage_comes_once_and_after_what_it_reads(reads: list[list[int]]) -> None:
    order, outputs = schedule_order(reads, list(range(len(reads))))
    assert sorted(order) == list(range(len(reads)))
    position = {op: i for i, op in enumerate(order)}
    assert all(position[source] < position[op] for op in order for source in reads[op])
    read = {source for sources in reads for source in sources}
    assert sorted(outputs) == [op for op in range(len(reads)) if op not in read]
