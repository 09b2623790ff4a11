"""Every example of the documentation does what its page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, Untrue, blocks_of, is_like, masked, run_page


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_happens(page: Path, tmp_path: Path):
    run_page(page.read_text(encoding="utf-8"), tmp_path)


def test_a_page_is_taken_apart_into_its_blocks():
    page = (
        "Text.\n\n```python\n# flow.py\nx = 1\n```\n\n<!-- file: g.json -->\n```json\n{}\n```\n\n```text\n$ no\n```\n"
    )

    found = [(block.language, block.file, block.line) for block in blocks_of(page)]

    assert found == [("python", "flow.py", 4), ("json", "g.json", 10), ("text", None, 14)]


@pytest.mark.parametrize(
    "page",
    [
        "```python\nprint(1 + 1)  # 3\n```\n",
        "```python\nraise ValueError\n```\n",
        "```python\nint('x')  # raises KeyError\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
        "```console\n$ echo one\none\ntwo\n```\n",
        "```console\n$ perdure nonsense\n```\n",
        "```console\n$ exit 3\n```\n",
    ],
)
def test_what_is_not_so_is_found(page: str, tmp_path: Path):
    with pytest.raises(Untrue):
        run_page(page, tmp_path)


@pytest.mark.parametrize(
    "page",
    [
        "```python\nprint(1 + 1)  # 2\n```\n",
        "```python\nint('x')  # raises ValueError\n```\n",
        "```python\n# one.py\nvalue = 1\n```\n\n```python\nfrom one import value\n\nprint(value)  # 1\n```\n",
        "```console\n$ echo one; echo two; echo three\none\n…\nthree\n$ false\n$ echo $?\n1\n```\n",
        "```console\n$ make nothing\n```\n",
        "```text\nanything\n```\n",
    ],
)
def test_what_is_so_passes(page: str, tmp_path: Path):
    run_page(page, tmp_path)


def test_only_what_differs_from_run_to_run_is_masked():
    assert masked("12:03:04 fetch completed in 1.2 s  ████░  (attempt 2)") == (
        "<time> fetch completed in <span> <bar> (attempt 2)"
    )
    assert masked("2 min 5 s, 0198f2aa-aaaa-7aaa-8aaa-aaaaaaaaaaaa") == "<span>, <id>"
    assert not is_like(["a", "…", "c"], ["a", "b"])
