"""Stored data is never code: what could turn one into the other occurs nowhere in the source."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "perdure"
MODULES = frozenset(("pickle", "cPickle", "cloudpickle", "dill", "jsonpickle", "marshal", "shelve"))
CALLS = frozenset(("eval", "exec"))
YAML_LOADERS = frozenset(("load", "load_all", "unsafe_load", "full_load"))
IGNORED = frozenset((tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT))


def forbidden_in(code: str) -> Iterator[str]:
    """Comments and longer texts may name what is forbidden; a text that is nothing but such a name may not."""
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(code).readline) if token.type not in IGNORED]
    words = ["", "", *(token.string for token in tokens), "", ""]
    for index, word in enumerate(words):
        before, after = words[index - 1], words[(index + 1) % len(words)]
        is_call = word in CALLS and after == "(" and before not in (".", "def")
        if is_call or word.strip("\"'") in MODULES:
            yield word
        elif word in YAML_LOADERS and before == "." and words[index - 2] == "yaml":
            yield f"yaml.{word}"


def test_nothing_that_turns_data_into_code_occurs_in_the_source():
    files = sorted(SOURCE.rglob("*.py"))

    found = {str(file.relative_to(SOURCE)): list(forbidden_in(file.read_text())) for file in files}

    assert len(files) > 5
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from marshal import loads",
        "importlib.import_module('shelve')",
        "x = eval(text)",
        "exec (text)",
        "yaml.load(text)",
        "yaml.unsafe_load(text)",
    ],
)
def test_the_search_finds_what_is_forbidden(code: str):
    assert list(forbidden_in(code))


@pytest.mark.parametrize(
    "code", ["# never pickle", '"""No eval(x) here."""', "await self.exec(x)", "yaml.safe_load(x)"]
)
def test_the_search_passes_over_what_is_not(code: str):
    assert not list(forbidden_in(code))
