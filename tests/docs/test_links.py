"""Links between the pages lead somewhere, and no page speaks of what is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT

OTHERS = (ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs" / "decisions").glob("*.md")))
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path):
    assert list(_broken(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_lines_can_be_read_in_an_editor(page: Path):
    prose = _FENCED.sub("", page.read_text(encoding="utf-8"))

    assert [line for line in prose.splitlines() if len(line) > 160 and not line.startswith("|")] == []


def test_every_page_can_be_reached_from_the_readme():
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += [path for path, _ in _targets(page) if path.suffix == ".md"]

    assert reached >= set(PAGES)


def _broken(page: Path) -> Iterator[str]:
    for path, anchor in _targets(page):
        if not path.exists():
            yield str(path)
        elif anchor and anchor not in _anchors(path):
            yield f"{path}#{anchor}"


def _targets(page: Path) -> Iterator[tuple[Path, str]]:
    for found in _LINK.finditer(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in found["target"]:
            path, _, anchor = found["target"].partition("#")
            yield (page if not path else (page.parent / path).resolve()), anchor


def _anchors(page: Path) -> set[str]:
    """Return what headings are called in links: their words in lower case, joined by hyphens."""
    titles = [found["title"] for found in _HEADING.finditer(_FENCED.sub("", page.read_text(encoding="utf-8")))]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
