"""Give every file of the site its path in the repository, so that links need no change.

A page of the site is a Markdown file that links lead to from README.md; pictures, tables and
scripts behind those links are copied as they are.
"""

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
NAMED = re.compile(r"\[([^\]]*)" + LINK.pattern)
STARTS = ("README.md", "docs/README.md", "docs/site.css")


def targets(page: str) -> list[str]:
    """List the files of the repository that a page links to, as paths from its root."""
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    found = []
    for link, _ in LINK.findall(text):
        path = (ROOT / page).parent / link
        if "://" in link or not path.exists():
            continue
        path = path / "README.md" if path.is_dir() else path
        if not path.is_file():  # a folder without a page stays a name
            continue
        found.append(path.resolve().relative_to(ROOT).as_posix())
    return found


def reached() -> list[str]:
    """List every file that links lead to, page by page, from the first ones."""
    known, waiting = set(STARTS), list(STARTS)
    while waiting:
        page = waiting.pop()
        for target in targets(page) if page.endswith(".md") else ():
            if target not in known:
                known.add(target)
                waiting.append(target)
    return sorted(known)


def on_files(files: Files, config: Any) -> Files:
    """Replace the files below docs/ by those that links lead to (a hook of mkdocs)."""
    theme = [file for file in files if file.generated_by or not file.src_uri.endswith(".md")]
    kept = [file for file in theme if not (ROOT / "docs" / file.src_uri).exists()]
    return Files(
        kept + [File.generated(config, path, abs_src_path=str(ROOT / path)) for path in reached()]
    )


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let a link to a folder open its README, or keep its name only (a hook of mkdocs)."""
    folder = (ROOT / page.file.src_uri).parent

    def opened(match: re.Match[str]) -> str:
        text, link, anchor = match.group(1), match.group(2), match.group(3) or ""
        if "://" in link or not (folder / link).is_dir():
            return match.group(0)
        if not (folder / link / "README.md").is_file():
            return text
        return f"[{text}]({PurePosixPath(link) / 'README.md'}{anchor})"

    return NAMED.sub(opened, markdown)
