"""The shape of the house: who may import whom, how large a file or function may grow."""

import ast
import re
from collections import Counter
from functools import cache

import pytest

from tests.commands import python
from tests.paths import REPOSITORY

PACKAGE = REPOSITORY / "pruner"
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = [path.parent for path in sorted(PACKAGE.glob("*/**/__init__.py"))]
DOORS = sorted(REPOSITORY.glob("*.py"))

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 70  # a linear algorithm may be that long; most functions are under a dozen

# Packages whose docstrings begin in plain words ("": the files at the top); add the others.
PLAIN_ROOMS = ("", "cli", "data", "features", "models", "program", "search", "study", "tune")
MAX_FIRST_LINE_WORDS = 14
# A program does not know, tell or want, and a pronoun needs its noun.
VAGUE = tuple(
    re.compile(rf"\b(?:{words})\b", re.IGNORECASE)
    for words in (
        "knows?|knew",
        "meets?|met",
        "tells?|told",
        "asks?|asked",
        "answers?|answered",
        "says?|said",
        "wants?|wanted",
        "wishes|wished",
        "thinks?|thought",
        "forgets?|forgotten",
        "remembers?|remembered",
        "whom",
        "who|whoever",
        "whatever",
        "somebody|nobody|anybody",
        "those (?:of|that|which|who|with|in|for)",
        "ones",
        r"one(?= (?:of (?:them|these|those|which)|that|which|who|where|with|in|is|has)\b|[,;.:])",
        "(?:all|any|each|some|most|both|none|which) of (?:them|these|those)",
        "the same (?:for|of|in|with|to)|see above",
    )
)
CODE_SPAN = re.compile(r":\w+:`[^`]*`|``[^`]*``|`[^`]*`")

# Path below pruner/ (or path:function) -> why it may be larger. Delete an entry that shrank.
LARGER: dict[str, str] = {}


@cache
def parsed(path):
    """The syntax tree of a file; nobody may change it."""
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path):
    return path.relative_to(PACKAGE).as_posix()


def functions(path):
    """Every function; statements alone are looked at, a tenth of a tree."""
    waiting = list(parsed(path).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        inner = ast.iter_child_nodes(node)
        kinds = ast.stmt | ast.excepthandler | ast.match_case
        waiting += [one for one in inner if isinstance(one, kinds)]


def test_imports_point_one_way():
    """The contracts are in pyproject.toml, [tool.importlinter]."""
    lints = "from importlinter.cli import lint_imports; exit(lint_imports())"
    result = python("-c", lints)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", result.stdout), result.stdout


def sizes():
    for path in FILES:
        yield name_of(path), len(path.read_text(encoding="utf-8").splitlines()), MAX_FILE_LINES
        for node in functions(path):
            length = node.end_lineno - node.lineno + 1
            yield f"{name_of(path)}:{node.name}", length, MAX_FUNCTION_LINES


def test_a_file_is_one_idea_a_function_fits_on_a_screen_and_exceptions_are_needed():
    too_long = [f"{name} has {n} lines, allowed {most}" for name, n, most in sizes() if n > most]
    assert [line for line in too_long if line.split(" ")[0] not in LARGER] == []
    over = {name for name, lines, most in sizes() if lines > most}
    assert all(LARGER.values())
    assert LARGER.keys() - over == set()


def test_only_the_doors_print():
    def prints(path):
        return any(
            isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
            for node in ast.walk(parsed(path))
        )

    talkers = [name_of(p) for p in FILES if prints(p) and not name_of(p).startswith("cli/")]
    assert talkers == []


@pytest.mark.parametrize("path", DOORS, ids=lambda p: p.name)
def test_a_root_script_only_opens_its_door(path):
    tree = parsed(path)
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    assert imported
    assert all(module.startswith("pruner.cli") for module in imported)
    assert not list(functions(path))


def test_every_room_says_what_it_holds():
    silent = [name_of(path) for path in FILES if not ast.get_docstring(parsed(path))]
    assert silent == []


@pytest.mark.parametrize("room", ROOMS, ids=name_of)
def test_a_room_describes_no_file_that_is_gone(room):
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))
    described = re.findall(r"^\* `(\w+)/?`", text, re.MULTILINE)
    inside = {path.stem for path in room.glob("*.py")} | {path.name for path in room.iterdir()}
    assert [name for name in described if name not in inside] == []


def first_lines(path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "module"), text.splitlines()[0]


def is_plain(line):
    prose = CODE_SPAN.sub("x", line)
    return len(line.split()) <= MAX_FIRST_LINE_WORDS and not any(p.search(prose) for p in VAGUE)


@pytest.mark.parametrize("room", PLAIN_ROOMS, ids=lambda room: room or "top")
def test_docstrings_begin_with_a_short_line_in_plain_words(room):
    files = sorted((PACKAGE / room).rglob("*.py")) if room else sorted(PACKAGE.glob("*.py"))
    wrong = [
        f"{name_of(path)}:{name}: {line}"
        for path in files
        for name, line in first_lines(path)
        if not is_plain(line)
    ]
    assert files
    assert wrong == []


@pytest.mark.parametrize(
    "line",
    [
        "What the space knows of a program.",
        "Rows of the programs, one of which is told apart.",
        "Those of a batch that fail.",
        "Whom a kernel is timed with.",
        "The same for many programs.",
        " ".join(["word"] * 15),
    ],
)
def test_a_vague_first_line_is_found(line):
    assert not is_plain(line)


def test_code_in_a_first_line_is_no_word():
    assert is_plain("Return the result of ``study.log`` and `ask` of one trial.")


# Names of modules that stand in several folders and mean the same thing in each of them.
SHARED_MODULES = {
    "batch", "columns", "cpu", "importing", "indexing",
    "leaderboard", "loop", "lower", "metaschedule", "network", "official", "page",
    "plots", "predict", "primitives", "progress", "records", "regions",
    "registry", "space", "trace", "windows",
}  # fmt: skip


def repeated(names):
    return {name for name, times in Counter(names).items() if times > 1}


def test_no_public_class_name_is_used_twice_and_module_names_mean_the_same():
    trees = [parsed(path) for path in FILES]
    classes = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    assert repeated(name for name in classes if name[0] != "_") == set()
    assert repeated(path.stem for path in FILES if path.stem != "__init__") == SHARED_MODULES
