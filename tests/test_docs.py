"""What the documents tell a reader to type or open exists, and the site has all of it."""

import ast
import json
import re
import subprocess
import sys

import pytest

from pruner.data.quarantine import Reason
from tests.paths import PAGES, REPOSITORY

DOCUMENTS = ["README.md", "CONTRIBUTING.md"]
GROUPS = ("platform", "workload", "policy", "effort", "model", "loss", "experiment", "schedule")
# House words and persons: a noun of the field is plainer, and a program does not know or tell.
UNPLAIN = re.compile(
    r"\b(whom|whoever|what it (?:is|was|has)|gone on with|goes on where|is told|are told|tells?"
    r"|knows?|asks?|asked|the doors?|rooms|ones)\b"
)
NAMES = [page.relative_to(REPOSITORY).as_posix() for page in PAGES]
# Pages that a command writes.
GENERATED = {"experiments/report.md", "benchmarks/results/attack.md"} | {
    name for name in NAMES if name.startswith("experiments/") and not name.endswith("README.md")
}
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def text_of(name):
    return (REPOSITORY / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_script_named_exists(name):
    scripts = set(re.findall(r"\b([\w/]+\.py)\b", text_of(name)))
    assert [s for s in sorted(scripts) if not (REPOSITORY / s).is_file()] == []


@pytest.mark.parametrize("name", NAMES)
def test_what_a_page_names_exists(name):
    text = text_of(name)
    targets = set(re.findall(r"^([\w-]+):", text_of("Makefile"), flags=re.MULTILINE))
    named = {
        word
        for command in re.findall(r"(?:`|^ +|\$ )make ([a-z][a-z -]*)", text, re.MULTILINE)
        for word in command.split()
    }
    named = {word for word in named if "=" not in word and word.islower()}
    assert named or name not in DOCUMENTS
    assert named <= targets
    rooms = "pruner|conf|tests|datasets|experiments"
    named = re.findall(rf"`((?:{rooms})/[\w/.-]*)`", text)
    assert [path for path in named if not (REPOSITORY / path).exists()] == []
    scripts = re.findall(r"\bpython ((?!PACKAGE)[\w/]+\.py)\b", text)
    begun = re.findall(r"(?:-m pruner\.cli|`pruner|^ +pruner) ([a-z_]+)", text, re.MULTILINE)
    modules = re.findall(r"\bpython -m (pruner(?!\.cli )[\w.]+)", text)
    paths = [*scripts, *(f"{name.replace('.', '/')}.py" for name in modules)]
    paths += [f"pruner/cli/{name}.py" for name in begun]
    assert [path for path in paths if not (REPOSITORY / path).is_file()] == []
    chosen = re.findall(rf"(?<![\w.+@/])({'|'.join(GROUPS)})=([a-z][\w-]*)(?![\w.:(/\[-])", text)
    own = set(re.findall(r"\+variants\.(\w+)=", text)) | {"null", "all", "manylinux_2_28_x86_64"}
    missing = [
        f"{group}={choice}"
        for group, choice in chosen
        if choice not in own and not (REPOSITORY / f"conf/{group}/{choice}.yaml").is_file()
    ]
    assert missing == []


def test_every_module_that_a_docstring_names_exists():
    missing = []
    for path in (REPOSITORY / "pruner").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r":(?:mod|class|func|data):`~?(pruner[\w.]+)`", text):
            parts = [
                REPOSITORY.joinpath(*name.split(".")[:n]) for n in range(1, name.count(".") + 2)
            ]
            *_, last = (one for one in parts if one.is_dir() or one.with_suffix(".py").is_file())
            file = last / "__init__.py" if last.is_dir() else last.with_suffix(".py")
            inside = file.read_text(encoding="utf-8")
            rest = name.split(".")[len(last.relative_to(REPOSITORY).parts) :]
            missing += [name for word in rest if not re.search(rf"\b{word}\b", inside)]
    assert missing == []


def anchors_of(text):
    """What a link may name behind #, as the hosts of such pages make it of headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name):
    text, wrong = FENCE.sub("", text_of(name)), []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = (REPOSITORY / name).parent / path if path else REPOSITORY / name
        if "://" in link or (target.exists() and not anchor):
            continue
        if not target.is_file() or anchor not in anchors_of(target.read_text(encoding="utf-8")):
            wrong.append(link)
    assert wrong == []


@pytest.mark.parametrize("name", [name for name in NAMES if name not in GENERATED])
def test_the_pages_are_in_plain_words_and_short_lines(name):
    prose = [
        line
        for line in FENCE.sub("", text_of(name)).splitlines()
        if not line.startswith(("|", "    ", "#", "![", ":::"))
    ]
    assert [line for line in prose if len(line) > 122] == []
    assert [line for line in prose if UNPLAIN.search(line)] == []


def test_the_page_of_public_calls_names_calls_with_docstrings():
    named = re.findall(r"^::: (\S+)$", text_of("docs/api.md"), re.MULTILINE)
    assert len(named) > 10
    for path in named:
        module, _, call = path.rpartition(".")
        tree = ast.parse(text_of(f"{module.replace('.', '/')}.py"))
        (found,) = [node for node in tree.body if getattr(node, "name", None) == call]
        assert ast.get_docstring(found), path


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_has_every_page(tmp_path):
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    named = [page.relative_to(REPOSITORY).with_suffix(".html").as_posix() for page in pages]
    named = [page.replace("README.html", "index.html") for page in named]
    assert [page for page in named if not (tmp_path / page).is_file()] == []


def test_every_page_of_docs_is_in_the_index():
    index = text_of("docs/README.md")
    pages = {path.name for path in (REPOSITORY / "docs").glob("*.md")} - {"README.md"}
    assert [page for page in sorted(pages) if f"]({page})" not in index] == []


def test_every_reason_to_leave_out_a_record_is_explained():
    rooms = ("data", "program/te", "program/dag", "program/index", "features/statement")
    files = [path for room in rooms for path in (REPOSITORY / "pruner" / room).rglob("*.py")]
    raised = {
        reason
        for path in files
        for reason in re.findall(
            r"(?:UnsupportedProgram|UnknownStep)\(\s*\"([\w-]+)\"", path.read_text(encoding="utf-8")
        )
    }
    assert "step-mismatch" in raised
    explained = set(re.findall(r"`([\w-]+)`", text_of("datasets/README.md")))
    assert {*raised, *Reason} - explained == set()


NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_no_outputs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert [cell["id"] for cell in code if cell["outputs"] or cell["execution_count"]] == []


def test_no_path_of_a_machine_is_in_a_notebook_or_its_records(repository):
    found = [
        path.name
        for path in (repository / "notebooks").rglob("*.*")
        if any(word in path.read_text(encoding="utf-8") for word in ("/home/", "/tmp/", "/root/"))
    ]
    assert found == []


def test_nbmake_executes_notebooks_within_a_time_limit(pytestconfig, repository):
    assert pytestconfig.getoption("nbmake")
    assert [path.stem for path in NOTEBOOKS] == ["network", "tour", "tuning_run"]
    text = (repository / "notebooks" / "network.ipynb").read_text(encoding="utf-8")
    assert json.loads(text)["metadata"]["execution"]["timeout"] == 240
