import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pruner.data import steps
from pruner.data.parse import LineParser
from pruner.data.quarantine import MalformedError, Reason
from pruner.data.steps import STEP_FIELDS, StepChecker


def reason_of(parser, text):
    try:
        parser.parse(text)
    except MalformedError as error:
        return error.reason.value
    return None


def with_step(raw, position, step):
    raw["i"][1][1][position] = step
    return json.dumps(raw)


NAN = float("nan")


def split(raw, extent, lengths):
    return with_step(raw, 1, ["SP", 2, 0, extent, lengths, 1])


def cost(raw, costs, error_no=0):
    return json.dumps({**raw, "r": [costs, error_no, 1, 1]})


def steps_are(raw, found):
    return json.dumps({**raw, "i": [raw["i"][0], [[], found]]})


def replaced(raw, old, new):
    return json.dumps(raw).replace(old, new)


TWICE = '"r": [[0.1], 0, 1, 1], "r":'


DAMAGE = {
    "cut in the middle": (lambda r: json.dumps(r)[:80], "malformed_json"),
    "two objects": (lambda r: json.dumps(r) + "{}", "malformed_json"),
    "nested without end": (lambda r: "[" * 5000 + "]" * 5000, "malformed_json"),
    "a list": (lambda r: "[1, 2]", "not_a_record"),
    "a number": (lambda r: "17", "not_a_record"),
    "AutoTVM": (lambda r: json.dumps({"input": [], "config": {}}), "missing_field"),
    "no r": (lambda r: json.dumps({"i": r["i"]}), "missing_field"),
    "short r": (lambda r: json.dumps({**r, "r": r["r"][:2]}), "missing_field"),
    "r is null": (lambda r: json.dumps({**r, "r": None}), "missing_field"),
    "no steps": (lambda r: json.dumps({**r, "i": [r["i"][0], [[]]]}), "missing_field"),
    "no hardware": (lambda r: json.dumps({**r, "i": [r["i"][0][:2], r["i"][1]]}), "missing_field"),
    "steps are text": (lambda r: json.dumps({**r, "i": [r["i"][0], [[], "SP"]]}), "bad_field"),
    "cost NaN": (lambda r: cost(r, [NAN]), "bad_cost"),
    "cost infinite": (lambda r: cost(r, [float("inf")]), "bad_cost"),
    "one cost NaN": (lambda r: cost(r, [1e-3, NAN]), "bad_cost"),
    "cost negative": (lambda r: cost(r, [-0.1]), "bad_cost"),
    "cost zero": (lambda r: cost(r, [0]), "bad_cost"),
    "cost filler": (lambda r: cost(r, [1e10]), "bad_cost"),
    "cost text": (lambda r: cost(r, ["fast"]), "bad_cost"),
    "cost true": (lambda r: cost(r, [True]), "bad_cost"),
    "no cost": (lambda r: cost(r, []), "bad_cost"),
    "error_no text": (lambda r: json.dumps({**r, "r": [[1], "0", 1, 1]}), "bad_field"),
    "all_cost NaN": (lambda r: json.dumps({**r, "r": [[1], 0, NAN, 1]}), "bad_field"),
    "TLM's PPT": (lambda r: with_step(r, 0, ["PPT"]), "unknown_step"),
    "tag with a digit": (lambda r: with_step(r, 1, ["SP2", 2, 0, 16, [1, 4], 1]), "unknown_step"),
    "step without tag": (lambda r: with_step(r, 0, [3, 1]), "bad_step"),
    "step is text": (lambda r: with_step(r, 0, "CI"), "bad_step"),
    "too few fields": (lambda r: with_step(r, 1, ["SP", 2, 0, 16]), "bad_step"),
    "too many fields": (lambda r: with_step(r, 7, ["AN", 3, 0, 5, 1]), "bad_step"),
    "stage negative": (lambda r: with_step(r, 1, ["SP", -2, 0, 16, [1, 4], 1]), "bad_step"),
    "stage a fraction": (lambda r: with_step(r, 1, ["SP", 2.5, 0, 16, [1, 4], 1]), "bad_step"),
    "length a fraction": (lambda r: split(r, 16, [1, 4.5]), "bad_step"),
    "length true": (lambda r: split(r, 16, [1, True]), "bad_step"),
    "no length": (lambda r: split(r, 16, []), "bad_step"),
    "extent not inferred": (lambda r: split(r, 0, [1, 4]), None),  # no damage
    "extent negative": (lambda r: split(r, -1, [1, 4]), "absurd_extent"),
    "extent null": (lambda r: split(r, None, [1, 4]), "bad_step"),
    "length zero": (lambda r: split(r, 16, [1, 0]), "absurd_extent"),
    "length negative": (lambda r: split(r, 16, [-1, 4]), "absurd_extent"),
    "extent 2^31 + 1": (lambda r: split(r, 2**31 + 1, [1, 4]), "absurd_extent"),
    "extent 10^30": (lambda r: split(r, 10**30, [1, 4]), "absurd_extent"),
    "timestamp 1e308": (lambda r: json.dumps({**r, "r": [[1], 0, 1, 1e308]}), "bad_field"),
    "error_no 2^63": (lambda r: json.dumps({**r, "r": [[1], 2**63, 1, 1]}), "bad_field"),
    "filler of 400 digits and NaN": (lambda r: cost(r, [10**400, NAN], 1), "malformed_json"),
    "NaN and 65 bits": (lambda r: with_step({**r, "n": NAN}, 0, ["CI", 2**65]), "malformed_json"),
    "half a surrogate": (lambda r: with_step(r, 0, ["CHW", 2, "\ud800"]), "malformed_json"),
    "a step 300 deep": (lambda r: with_step(r, 0, json.loads("[" * 300 + "]" * 300)), "bad_step"),
    "hardware 900 deep": (lambda r: replaced(r, "49152", "[" * 900 + "]" * 900), "bad_field"),
    "r written twice": (lambda r: replaced(r, '"r":', TWICE), "doubled_key"),
    "r twice behind an escape": (
        lambda r: replaced(r, '"r":', TWICE).replace("_70", "\\u003a"),
        "doubled_key",
    ),
    "257 steps": (lambda r: steps_are(r, [["CI", 2]] * 257), "bad_step"),
    "65 lengths": (lambda r: split(r, 16, [1] * 65), "bad_step"),
    "60,000 lengths 2^31": (lambda r: split(r, 16, [2**31] * 60_000), "bad_step"),
    "513 loops": (lambda r: steps_are(r, [["SP", 2, 0, 16, [1] * 57, 1]] * 9), "bad_step"),
    "lengths overflow": (lambda r: split(r, 16, [2**20, 2**20]), "absurd_extent"),
    "timings a number": (lambda r: json.dumps({**r, "timings": 3}), "bad_field"),
    "timings without a time": (lambda r: json.dumps({**r, "timings": [[[1e-3]]]}), "bad_field"),
    "timings by name": (lambda r: json.dumps({**r, "timings": {"ab": 1}}), "bad_field"),
    "a timing without cost": (lambda r: json.dumps({**r, "timings": [[0, []]]}), "bad_cost"),
    "a timing negative": (lambda r: json.dumps({**r, "timings": [[0, [-1.0]]]}), "bad_cost"),
    "decision 2^64 - 1": (lambda r: with_step(r, 1, ["MS", "a", [2**64 - 1]]), "absurd_extent"),
    "location -3": (lambda r: with_step(r, 1, ["MS", "a", [4, -3]]), "absurd_extent"),
    "1025 decisions": (lambda r: with_step(r, 1, ["MS", "a", [1] * 1025]), "bad_step"),
    "decision a fraction": (lambda r: with_step(r, 1, ["MS", "a", [1.5]]), "bad_step"),
}


def damaged(record, case):
    change, reason = DAMAGE[case]
    return change(record()).encode(), reason


@pytest.mark.parametrize("warm", [False, True], ids=["first line", "after good lines"])
@pytest.mark.parametrize("case", DAMAGE)
def test_damage_has_its_reason(record, line, case, warm):
    """The same verdict whether or not a good record of the same shape came before."""
    text, reason = damaged(record, case)
    parser = LineParser()
    if warm:
        parser.parse(line(4))
        parser.parse(line(8))
    assert reason_of(parser, text) == reason
    assert reason_of(parser, line(2)) is None  # the line after it reads


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ([7, "cuda", [1]], "bad_field"),
        (["matmul", "cuda", [1]], "bad_field"),
        (["[]", "cuda", [1]], "bad_field"),
        (["[16, 1024]", "cuda", [1]], "bad_field"),
        (['["matmul_layer", 4294967296]', "cuda", [1]], "absurd_extent"),
        (['["matmul_layer", [4294967296]]', "cuda", [1]], "absurd_extent"),
        (['["matmul_layer", 1]', "", [1]], "bad_field"),
        (['["matmul_layer", 1]', None, [1]], "bad_field"),
        (['["matmul_layer", 1]', ["cuda"], [1]], "bad_field"),
        (['["matmul_layer", 1]', "cuda", [1.5]], "bad_field"),
        (['["matmul_layer", 1]', "cuda", [[1]]], "bad_field"),
        (['["matmul_layer", 1]', "cuda", 1], "missing_field"),
        (['["matmul_layer", NaN]', "cuda", [1]], "absurd_extent"),
        (['["matmul_layer", {"m": 1}]', "cuda", [1]], "bad_field"),
        ([f'["matmul_layer", {"[" * 9}1{"]" * 9}]', "cuda", [1]], "bad_field"),
        ([f'["matmul_layer", {"[" * 900}1{"]" * 900}]', "cuda", [1]], "bad_field"),
        ([f'["matmul_layer"{", 1" * 2000}]', "cuda", [1]], "bad_field"),
        (['["matmul_layer", 1]', "cuda" * 2000, [1]], "bad_field"),
        (['["matmul_layer", 1]', "cuda", [1] * 65], "bad_field"),
        (['["matmul_layer", 1]', "cuda", [2**63]], "bad_field"),
    ],
)
def test_header_damage_has_its_reason(record, header, reason):
    raw = record()
    raw["i"][0][:3] = header
    assert reason_of(LineParser(), orjson.dumps(raw)) == reason


def test_bytes_that_are_no_utf8(line):
    assert reason_of(LineParser(), line().replace(b"local", b"lo\xe9al")) == "not_utf8"


def test_a_colon_in_a_text_is_no_key(record):
    raw = record(4, target="llvm -mtriple=x:y", note={"a": {"a": "b:c"}})
    assert LineParser().parse(orjson.dumps(raw)).header.target == "llvm -mtriple=x:y"


def test_a_line_costs_itself_whatever_the_reader_raises(line, monkeypatch):
    parser = LineParser()

    def broken(_steps):
        raise KeyError("anything")

    with monkeypatch.context() as patch:
        patch.setattr(parser._steps, "check", broken)
        assert reason_of(parser, line()) == "bad_line"
    assert reason_of(parser, line()) is None


def test_structures_beyond_the_limit_are_checked_all_the_same(monkeypatch):
    monkeypatch.setattr(steps.limits, "MAX_STRUCTURES", 1)
    checker = StepChecker()
    assert checker.check([["CI", 1]])[1] == checker.check([["CI", 2]])[1] == 0
    assert [checker.check([["CR", 1]])[1], checker.check([["CR", 1]])[1]] == [1, 2]
    with pytest.raises(MalformedError, match="bad_step"):
        checker.check([["CR", -1]])


def test_a_good_line_is_read_as_written_and_timings_are_kept(record):
    raw = record(4, origin="evolved", later_addition={"x": 1})
    parsed = LineParser().parse(orjson.dumps(raw))
    assert parsed.header.workload_key == '["matmul_layer", 16, 1024, 1024]'
    assert parsed.header.hardware_params == (-1, 16, 64, 49152, 2147483647, 1024, 8, 32)
    assert parsed.steps == raw["i"][1][1]
    assert (parsed.costs_s, parsed.error_no) == ((0.002, 0.004), 0)
    assert (parsed.all_cost_s, parsed.timestamp) == (1.5, 1700000000)
    assert parsed.origin == "evolved"
    raw = {**record(), "timings": [[5.0, [1e-3, 2e-3]], [300, [2e-3]]]}
    parsed = LineParser().parse(json.dumps(raw).encode())
    assert parsed.timings == ((1e-3, 2e-3), (2e-3,))
    assert LineParser().parse(json.dumps(record()).encode()).timings == ()


@pytest.mark.parametrize("costs", [[1e10], [], [0], ["x"]])
def test_a_failed_measurement_is_a_record_whatever_its_filler(line, costs):
    assert LineParser().parse(line(costs=costs, error_no=4)).error_no == 4


def test_every_known_step_passes_and_no_other(record):
    sample = {"i": 3, "e": 16, "E": [2, 4], "I": [0, 1], "s": "shared", "D": [4, -2]}
    for tag, fields in STEP_FIELDS.items():
        StepChecker().check([[tag, *(sample[kind] for kind in fields)]])
        with pytest.raises(MalformedError, match="unknown_step"):
            StepChecker().check([[tag.lower(), *(sample[kind] for kind in fields)]])


def test_structure_ignores_numbers_and_nothing_else():
    checker = StepChecker()

    def structure(*steps):
        return checker.check([list(step) for step in steps])[1]

    one = structure(("SP", 2, 0, 16, [1, 4], 1), ("FU", 1, [0]))
    assert structure(("SP", 9, 8, 512, [32, 16], 0), ("FU", 7, [1])) == one
    others = [
        structure(("SP", 2, 0, 16, [4], 1), ("FU", 1, [0])),
        structure(("SP", 2, 0, 16, [1, 4], 1), ("FU", 1, [])),
        structure(("SP", 2, 0, 16, [1, 4], 1), ("RE", 1, [0])),
        structure(("FU", 1, [0]), ("SP", 2, 0, 16, [1, 4], 1)),
    ]
    assert len({one, *others}) == 5


VALUES = st.one_of(
    st.integers(-(2**33), 2**33), st.floats(), st.none(), st.booleans(), st.sampled_from("ab5")
)
ANSOR_STEPS = st.tuples(
    st.sampled_from(["SP", "SP", "RE", "FU", "PPT", "SP1"]),
    st.integers(-1, 3),
    st.one_of(st.integers(0, 3), VALUES),
    st.one_of(st.integers(0, 2**32), VALUES),
    st.lists(st.one_of(st.integers(0, 2**20), VALUES), max_size=3),
    st.integers(0, 1),
).map(list)
TRACES = st.tuples(
    st.just("MS"),
    st.sampled_from(["a", "b", 1]),
    st.lists(st.one_of(st.integers(-3, 64), VALUES), max_size=3),
).map(list)
STEPS = st.lists(st.one_of(ANSOR_STEPS, TRACES), max_size=3)


def doubled(value):
    if isinstance(value, list):
        return [doubled(item) for item in value]
    return 2 * value if type(value) is int else value


@pytest.mark.parametrize("decision", [-3, -9999, 2**31 + 1, 2**63, 2**64 - 1])
def test_decisions_are_looked_at_in_every_trace(decision):
    """Their signs are part of a structure, how large they are is not."""
    checker = StepChecker()
    checker.check([["MS", "a", [4, -1, 4]]])
    with pytest.raises(MalformedError) as error:
        checker.check([["MS", "a", [abs(decision), -1, 4] if decision > 0 else [4, decision, 4]]])
    assert error.value.reason == Reason.ABSURD_EXTENT
    assert checker.check([["MS", "a", [8, -2, 2]]])[1] == 0


@given(st.lists(STEPS, max_size=4), STEPS)
def test_what_came_before_never_changes_a_verdict(earlier, steps):
    """Oracle for the fast way: a fresh checker, which looks at every field."""

    def verdict(checker, steps):
        try:
            return checker.check(json.loads(json.dumps(steps)))[0]
        except MalformedError as error:
            return error.reason

    warm = StepChecker()
    twin = doubled(steps)
    for other in [*earlier, twin]:
        verdict(warm, other)
    assert verdict(warm, steps) == verdict(StepChecker(), steps)


@pytest.mark.parametrize(("version", "known"), [("v0.2", True), ("v0.3", True), ("v0.6", False)])
def test_formats_before_hardware_parameters_are_read(record, version, known):
    raw = record() | {"v": version}
    del raw["i"][0][2:]
    if known:
        assert LineParser().parse(json.dumps(raw).encode()).header.hardware_params == ()
    else:
        with pytest.raises(MalformedError, match="missing_field"):
            LineParser().parse(json.dumps(raw).encode())
