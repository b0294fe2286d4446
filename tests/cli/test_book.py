"""The results book says what the CSV files say, and notices when it no longer does."""

import os
import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import yaml

from pruner.cli.book import chosen
from pruner.errors import PrunerError
from pruner.study.book.items import Number, load_item, load_items
from pruner.study.book.key_numbers import (
    KeyNumber,
    NoRows,
    measure,
    plot_series,
    read_results,
    table_cells,
)

CSV = """platform,model,seed,share,top1
a,net,0,1,0.5
a,net,1,1,0.7
a,net,0,0.1,0.4
a,tree,0,1,0.4
b,net,0,1,0.9
"""
SMALL = "platform,model,seed,share,top1\na,net,0,1,0.25\n"
ITEM = {
    "title": "Toy",
    "paper": "Table 0",
    "shows": "What `net` does.",
    "results": ["results.csv"],
    "run": {
        "full": ["false"],
        "small": [f"printf {SMALL!r} > {{out}}/results.csv"],
    },
    "minutes": {"full": 3, "small": 1},
    "numbers": [
        {"name": "net", "where": {"model": "net", "share": 1}, "value": "top1",
         "expected": [0.6, 0.8], "expected_from": "paper", "paper": 0.9, "differs": "a toy"},
        {"name": "ahead", "where": {"model": "net", "share": 1, "platform": "a"},
         "minus": {"model": "tree"}, "value": "top1"},
    ],
    "tables": [{"title": "All", "rows": ["platform", "model"], "values": {"top1": "Top-1"},
                "where": {"share": 1}, "spread": True}],
    "plots": [{"title": "Curve", "kind": "line", "x": "share", "y": "top1", "series": "model"},
              {"title": "Bars", "kind": "bar", "x": "platform", "y": "top1", "series": "model"}],
}  # fmt: skip


@pytest.fixture
def write(tmp_path):
    def write(changes=(), csv=CSV):
        folder = tmp_path / "experiments" / "toy"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "item.yaml").write_text(yaml.safe_dump(ITEM | dict(changes)))
        (folder / "results.csv").write_text(csv)
        return folder

    return write


def test_numbers_ranges_and_tables_by_hand(write):
    item = load_item(write())
    rows = read_results(item)
    net, ahead = (measure(number, rows) for number in item.numbers)
    assert net.value == pytest.approx((0.5 + 0.7 + 0.9) / 3)
    assert ahead.value == pytest.approx((0.5 + 0.7) / 2 - 0.4)
    assert (ahead.own, ahead.rival) == (0.4, "tree")  # what was taken away
    assert table_cells(item.tables[0], rows) == [
        ["platform", "model", "Top-1"],
        ["a", "net", "0.600 ± 0.141"],  # 0.2 / sqrt(2)
        ["a", "tree", "0.400"],
        ["b", "net", "0.900"],
    ]
    number = load_item(write()).numbers[0]
    assert [KeyNumber(number=number, value=v).inside for v in (0.59, 0.6, 0.8, 0.81)] == [
        False, True, True, False,
    ]  # fmt: skip


def test_a_row_without_the_value_is_no_point_of_a_plot(write):
    """A line that ended there would have no name."""
    item = load_item(write(csv=f"{CSV}a,net,0,2,\nc,lame,0,1,\n"))
    lines, bars = (plot_series(plot, read_results(item)) for plot in item.plots)
    assert [(one.name, list(one.x)) for one in lines] == [("net", [0.1, 1.0]), ("tree", [1.0])]
    assert lines[0].y == [0.4, 0.7]  # of 1: .5, .7 and .9
    assert [(one.name, one.x) for one in bars] == [("net", ["a", "b"]), ("tree", ["a"])]
    plot = replace(item.plots[0], where={"model": "lame"})
    with pytest.raises(NoRows, match="no selected row has top1"):
        plot_series(plot, read_results(item))


def test_a_number_stands_beside_chance_and_must_not_fall_below_it(write):
    chance = {"where": {"model": "tree"}, "value": "top1"}
    one = {"name": "net", "where": {"seed": 1}, "value": "top1", "expected_from": "chance"}
    two = [one | {"chance": chance}, one | {"chance": 0.75, "name": "again"}]
    item = load_item(write({"numbers": two}))
    above, below = (measure(number, read_results(item)) for number in item.numbers)
    assert (above.chance, above.expected, above.inside) == (0.4, (0.4, 1.0), True)
    assert (below.expected, below.inside) == ((0.75, 1.0), False)


FACTOR_CSV = """workload,seeds,reached,method,speedup
matmul,3,3,rival,1.5
conv,3,3,rival,2.5
matmul,3,1,ours,0
conv,3,3,ours,8
matmul,3,0,random,0
conv,3,1,random,0
"""
FACTOR = {
    "name": "times less", "where": {"method": "ours"}, "value": "speedup", "each": ["workload"],
    "own": {"method": "rival"}, "chance": {"where": {"method": "random"}, "value": "speedup"},
}  # fmt: skip


def test_a_factor_is_shown_with_its_values_and_how_many_reached_it(write, command):
    """A mean of 8 and 0 is 4; the rival's own row has 2, so most of it is the measure's."""
    parts = {"numbers": [FACTOR], "tables": [], "plots": []}
    folder = write(parts, FACTOR_CSV)
    one = measure(load_item(folder).numbers[0], read_results(load_item(folder)))
    assert (one.value, one.own, one.rival, one.chance) == (4, 2, "rival", 0)
    assert (one.parts, one.reached) == ({"conv": 8, "matmul": 0}, (4, 6))
    assert command("report")[0] == 0
    shown = "| 4.000 | 0 (matmul), 8 (conv); reached in 4 of 6 | 2.000 (rival) | 0.000 |"
    assert shown in (folder.parent / "report.md").read_text()


def test_without_a_column_of_runs_a_factor_above_zero_reached_its_target(write):
    csv = "\n".join(",".join(line.split(",")[i] for i in (0, 3, 4)) for line in FACTOR_CSV.split())
    item = load_item(write({"numbers": [FACTOR]}, csv))
    assert measure(item.numbers[0], read_results(item)).reached == (1, 2)


def gaps_of(number):
    """The missing references of a key number, in words; empty if complete."""
    own = number.own is not None or number.minus is not None
    if not number.is_factor:
        known = own or number.chance is not None or number.paper is not None or number.alone
        return [] if known else ["chance, own, paper or alone"]
    wanted = {
        "each (the values it averages)": number.each,
        "own (the rival's own row)": own,
        "chance, or alone": number.chance is not None or number.alone,
    }
    return [name for name, given in wanted.items() if not given]


@pytest.mark.parametrize(
    ("number", "gaps"),
    [
        ({"value": "top1", "differs": "a toy"}, 1),  # why it differs is no reference
        ({"value": "top1", "chance": 0.5}, 0),
        ({"value": "top1", "minus": {"model": "tree"}}, 0),
        ({"value": "speedup", "paper": 2.6}, 3),
        ({"value": "speedup_to_ansor", "chance": 0.0, "own": {"model": "tree"}}, 1),
        ({"value": "times_less", "each": ["model"], "alone": "chance was not run"}, 1),
        (FACTOR, 0),
    ],
)
def test_what_a_key_number_must_not_lack(number, gaps):
    assert len(gaps_of(Number(**{"name": "n"} | number))) == gaps


def test_every_item_of_the_book_is_complete(repository):
    """Chance, the rival's own row, the paper's value or a reason; of a factor all of them."""
    items = load_items(repository / "experiments")
    lacking = {
        f"{i.name}, {n.name}": found for i in items for n in i.numbers if (found := gaps_of(n))
    }
    assert lacking == {}
    assert [item.name for item in items if not (item.verdict and item.finding)] == []
    assert len([item for item in items if item.summary]) == 5
    for item in items:
        assert set(item.run) == set(item.minutes)
        assert set(item.run) in ({"full", "small"}, {"alone"}, {"gpu"})
    assert sum(item.minutes.get("small", 0) for item in items) / 2 < 10
    assert sum(item.minutes.get("full", 0) for item in items) / 2 < 60


def test_a_column_that_a_file_lacks_gets_the_value_of_the_item(write):
    csv = "\n".join(",".join(line.split(",")[:3]) for line in CSV.splitlines())
    rows = read_results(load_item(write({"missing": {"share": 1.0}}, csv)))
    assert rows["share"].tolist() == [1.0] * 5


def test_the_page_stands_alone_and_agrees_until_the_results_change(write, command, tmp_path):
    folder = write()
    plots = folder.parent / "plots"
    plots.mkdir()
    (plots / "mine.svg").write_bytes(b"<svg>\xff</svg>")
    (plots / "gone-0.svg").write_text("<svg data-of='0'></svg>")  # a plot of an earlier page
    result, _ = command("report").done
    assert result["numbers"]["toy/net"] == pytest.approx(0.7)
    page = (folder.parent / "report.html").read_text()
    assert page.count("<svg") == 2
    assert not re.search(r"<script|<link|src=|@import", page)
    assert "| a | net | 0.600 ± 0.141 |" in (folder.parent / "report.md").read_text()
    assert {path.name for path in plots.iterdir()} == {"mine.svg", "toy-0.svg", "toy-1.svg"}
    assert "about full preset 3 minutes, small preset 1 minutes." in page
    assert command("report", "check=true")[0] == 0
    write(csv=CSV.replace("a,net,0,0.1,0.4", "a,net,0,0.1,0.41"))  # only the plots show it
    assert "differs from the results" in command("report", "check=true").refusal


def test_the_list_of_numbers_names_a_title_and_a_table_of_the_paper_once(write, command):
    one = {"where": {"model": "tree"}, "value": "top1"}
    names = [("a", ""), ("b", "Fig. 1"), ("c", "Fig. 1"), ("d", "")]
    folder = write({"numbers": [one | {"name": name, "of": of} for name, of in names]})
    assert command("report")[0] == 0
    lines = (folder.parent / "report.md").read_text().splitlines()
    assert [" | ".join(line.split(" | ")[:3]) for line in lines if "| 0.400 |" in line][:4] == [
        "| Toy | Table 0 | a",
        "|  | Fig. 1 | b",
        "|  |  | c",
        "|  | Table 0 | d",
    ]


def test_a_folder_of_results_that_is_not_there_is_refused(write, command, tmp_path):
    folder = write()
    err = command("report", f"results={tmp_path / 'nowhere'}").refusal
    assert (
        err.strip().splitlines()[-1].startswith(f"error: results={tmp_path / 'nowhere'}: no such")
    )
    assert not (folder.parent / "report.html").exists()


def test_a_number_outside_its_range_fails_the_check(write, command):
    folder = write()
    write(csv=CSV.replace("b,net,0,1,0.9", "b,net,0,1,0.1"))
    assert command("report")[1]["outside"] == 1
    assert "toy, net: 0.4333 is outside 0.6 to 0.8" in command("report", "check=true").refusal
    assert "(outside)" in (folder.parent / "report.md").read_text()


def test_of_an_item_that_is_run_in_parts_what_is_there_is_shown(write, command):
    lacks = {"title": "Deep", "rows": ["model"], "values": {"top1": "Top-1"}, "where": {"share": 2}}
    parts = {"tables": [*ITEM["tables"], lacks], "results": ["results.csv", "absent.csv"]}
    folder = write({**parts, "run": {"alone": ["false"]}, "minutes": {"alone": 600}})
    assert command("report")[0] == 0
    page = (folder.parent / "report.md").read_text()
    assert "Not run yet: Deep.\n" in page
    assert "| a | net | 0.600 ± 0.141 |" in page
    # by one command, so all of it is there or something is wrong
    write({"tables": parts["tables"]})
    assert "no row has {'share': 2}" in command("report").refusal


def test_the_page_begins_with_its_summary_and_a_verdict_on_every_item(write, command):
    said = {"verdict": "partly reproduced", "finding": "It is .6.", "summary": "All is well."}
    folder = write(said)
    assert command("report")[0] == 0
    page = (folder.parent / "report.md").read_text()
    assert page.index("All is well.\n") < page.index(
        "| Toy | Table 0 | partly reproduced | It is .6. |"
    )
    assert "\n\nVerdict: partly reproduced. It is .6.\n" in page
    write({**said, "verdict": "fine"})
    assert "verdict=fine is unknown; known: reproduced, " in command("report").refusal


def test_an_item_without_results_is_named(write, command):
    folder = write()
    (folder / "results.csv").unlink()
    assert command("report")[0] == 0
    assert "Without results yet: Toy." in (folder.parent / "report.md").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"titel": "x"}, "titel: unknown; known: "),
        ({"numbers": [{"name": "n", "value": "top1", "expected": [1, 0]}]}, "must be [low, high]"),
        ({"numbers": [{"name": "n", "value": "top1", "expected": [0, 1]}]}, "say expected_from"),
        (
            {"numbers": [{"name": "n", "value": "top1", "expected_from": "chance"}]},
            "no chance is given",
        ),
        ({"plots": [ITEM["plots"][0] | {"kind": "pie"}]}, "kind=pie is unknown; known: line, bar"),
        ({"numbers": [{"name": "n", "expected": [0, 1]}]}, "missing"),
        ({"numbers": [ITEM["numbers"][1]] * 2}, "numbers: ahead: a name stands twice"),
        ({"tables": [ITEM["tables"][0] | {"where": {"model": "none"}}]}, "no row has"),
        ({"tables": [ITEM["tables"][0] | {"where": {"modell": "net"}}]}, "no column modell"),
        ({"numbers": [ITEM["numbers"][0] | {"each": ["sead"]}]}, "number net: no column sead"),
        ({"tables": [ITEM["tables"][0] | {"rows": ["modell"]}]}, "no column modell"),
        ({"tables": [ITEM["tables"][0] | {"values": {"topp": "Top"}}]}, "no column topp"),
        ({"plots": [ITEM["plots"][0] | {"y": "topp"}]}, "no column topp"),
    ],
)
def test_a_description_that_means_nothing_is_one_line(write, command, changes, message):
    write(changes)
    assert message in command("report").refusal


def test_the_book_runs_items_and_repeats_none(write, command, toy_root, tmp_path):
    write()
    options = (f"data.root={toy_root}", "preset=small", "run_id=mine")
    result, err = command("book", *options).done
    folder = tmp_path / result["run_dir"]
    # The selections that only the full preset has are left out.
    assert "| a | net | 0.250 |" in (folder / "report.md").read_text()
    made = folder / "toy" / "results.csv"
    made.write_text(made.read_text().replace("0.25", "0.35"))  # would be written again
    _, err = command("book", f"resume={folder}").done
    assert "toy: finished before" in err
    assert "0.35" in made.read_text()
    assert "0.5" in (tmp_path / "experiments/toy/results.csv").read_text()  # small: not published


def test_full_publishes_and_a_failing_item_changes_nothing(write, command, toy_root, tmp_path):
    write({"run": {"full": ["echo broken > {out}/results.csv; exit 3"]}})
    assert "failed: toy" in command("book", f"data.root={toy_root}").refusal
    assert (tmp_path / "experiments/toy/results.csv").read_text() == CSV
    write({"run": {"full": [f"printf '{CSV.replace('0.9', '0.8')}' > {{out}}/results.csv"]}})
    assert command("book", f"data.root={toy_root}")[0] == 0
    assert "b,net,0,1,0.8" in (tmp_path / "experiments/toy/results.csv").read_text()
    assert command("report", "check=true")[0] == 0


@pytest.mark.slow
def test_an_interrupted_book_leaves_nothing_running(write, toy_root, tmp_path, repository):
    write({"run": {"full": [f"echo $$ > {tmp_path}/pid; sleep 60; touch {tmp_path}/after"]}})
    book = subprocess.Popen(
        [sys.executable, "-m", "pruner.cli", "book", f"data.root={toy_root}"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(repository)},
        stderr=subprocess.DEVNULL,
    )
    while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text().strip():
        assert book.poll() is None
        time.sleep(0.1)
    book.terminate()
    assert book.wait(timeout=50) == 143  # before its command would end
    child = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.mark.slow
def test_the_committed_page_agrees_with_the_committed_results(command, repository):
    assert command("report", f"experiments={repository}/experiments", "check=true").done


def test_unknown_items_and_presets_are_told(write, command, toy_root, tmp_path):
    write()
    for options, message in (
        (["only=none"], "only=none is unknown; known: toy"),
        (["preset=huge"], "unknown; known: full, small"),
        (["only=[toy]", "preset=alone"], "toy has only full, small"),
    ):
        assert message in command("book", f"data.root={toy_root}", *options).refusal
    assert len(chosen(load_items(tmp_path / "experiments"), ["toy", "toy"], "small")) == 1
    with pytest.raises(PrunerError, match=r"no <item>/item\.yaml"):
        load_items(tmp_path)


def test_a_damaged_item_is_one_line_with_its_file(command, write):
    folder = write()
    for name, content in (
        ("results.csv", b"model,top1\n\xff\xfe,1\n"), ("results.csv", b""),
        ("item.yaml", b"numbers: [\n"), ("item.yaml", b"\xff"),
    ):  # fmt: skip
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        code, _, err = command(
            "report", f"experiments={folder.parent}", f"out={folder.parent / 'page'}"
        )
        assert (code, len(err.splitlines())) == (2, 1), err
        assert f"error: {folder / name}: " in err
        (folder / name).write_bytes(whole)
