"""What the engine and its like warn of is told on the command line with everything that the log line carries."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from perdure.cli.logged import FOR_PROGRAMS, WORDS, Warnings

LEVELS = ("warning", "error", "exception", "critical")


def logged(tree: ast.AST) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the names that a module warns of, each with the names of its facts, as far as they stand there."""
    for call in ast.walk(tree):
        match call:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log" | "_log"), attr=attribute), args=[name, *_]):
                if attribute not in LEVELS:
                    continue
                extras = [keyword.value for keyword in call.keywords if keyword.arg == "extra"]
                keys = [key for extra in extras if isinstance(extra, ast.Dict) for key in extra.keys]
                facts = tuple(str(key.value) for key in keys if isinstance(key, ast.Constant))
                for one in (name.body, name.orelse) if isinstance(name, ast.IfExp) else (name,):
                    assert isinstance(one, ast.Constant), "a log line is a constant name"
                    yield str(one.value), facts
            case _:
                pass


def all_logged() -> list[tuple[str, tuple[str, ...]]]:
    package = Path(perdure.__file__).parent
    found = {line for path in package.rglob("*.py") for line in logged(ast.parse(path.read_text()))}
    return sorted(found)


def told(capsys: pytest.CaptureFixture[str], name: str, **facts: object) -> str:
    """Return what people see of a log line."""
    Warnings().emit(logging.makeLogRecord({"msg": name, "levelno": logging.WARNING, **facts}))
    return capsys.readouterr().err


@pytest.mark.parametrize(("name", "facts"), all_logged(), ids=lambda value: value if isinstance(value, str) else "")
def test_all_that_is_warned_of_is_told_with_its_facts(
    capsys: pytest.CaptureFixture[str], name: str, facts: tuple[str, ...]
):
    line = told(capsys, name, **{fact: f"<{fact}>" for fact in facts})

    assert line.startswith(f"perdure: {WORDS.get(name, name)}")
    assert [fact for fact in facts if f"<{fact}>" not in line and not (name in WORDS and fact in FOR_PROGRAMS)] == []


def test_there_are_no_words_for_what_nobody_warns_of():
    assert WORDS.keys() - {name for name, _ in all_logged()} == set()


@pytest.mark.parametrize(
    ("name", "facts", "line"),
    [
        (
            "postgres_may_lose_commits",
            {"where": "db.example/runs", "fsync": "off", "full_page_writes": "on"},
            "(where db.example/runs, fsync off, full_page_writes on).",
        ),
        ("run_not_readable", {"run_id": "r1", "problems": ["no type 'a'", "no 'b'"]}, "(run r1): no type 'a'; no 'b'"),
        ("events_lost", {"lost": 3, "error": "disk full"}, "(lost 3): disk full"),
        ("run_is_busy", {"run_id": "r1", "problem": "it is locked"}, "(run r1): it is locked"),
        ("probe_failed", {"run_id": "r1", "node_id": "n", "attempt": 2, "error": "E: x"}, "(run r1, node n, attempt 2): E: x"),
    ],
)  # fmt: skip
def test_words_are_followed_by_where_it_is_and_why(
    capsys: pytest.CaptureFixture[str], name: str, facts: dict[str, object], line: str
):
    assert told(capsys, name, **facts) == f"perdure: {WORDS[name]} {line}\n"


def test_a_name_without_words_is_told_with_its_facts(capsys: pytest.CaptureFixture[str]):
    assert told(capsys, "loop_stalled", engine_id="e1") == "perdure: loop_stalled engine_id=e1\n"
