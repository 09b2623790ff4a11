"""The page for those who come from elsewhere names only what is there, and says of nothing that it is missing if it is not."""

from __future__ import annotations

import inspect
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from itertools import chain

import click
import pytest

import perdure
from perdure import Context, Engine, EngineSettings, Run, errors
from perdure.cli.entry import commands
from perdure.graph.forms import graph_from_json
from perdure.graph.lifecycle import AFTER, BEFORE, ENTRIES
from perdure.graph.model import Node
from perdure.graph.policy import Policy
from perdure.journal import events
from perdure.journal.states import NodeStatus, RunStatus
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "coming-from.md"
MISSING = "not there yet"
_TOKEN = re.compile(r"`([^`]+)`")
_FACTS = frozenset(("run_id", "node_id", "attempt", "item", "idempotency_key", "log"))
"""What a context has beside methods and properties of its class."""


def _cells() -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(PAGE.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("|") and not line.startswith(("|---", "| there |")):
            yield number, [cell.strip() for cell in line.strip("|").split("|")]


def _named(*, missing: bool) -> list[tuple[int, str]]:
    """Return the names that a row says are here, or are missing, with its line."""
    found: list[tuple[int, str]] = []
    for number, cells in _cells():
        if cells[1].startswith(MISSING) == missing:
            found += [(number, token) for token in _TOKEN.findall(cells[1])]
    return found


def _in_third_column() -> list[tuple[int, str]]:
    """Return the names in the explanations that can only be meant as ours."""
    ours = re.compile(r"(perdure|engine\.|run\.|ctx\.|@)")
    return [(number, token) for number, cells in _cells() for token in _TOKEN.findall(cells[2]) if ours.match(token)]


def test_every_row_says_what_is_there_what_is_here_and_how_they_differ():
    rows = list(_cells())

    assert len(rows) > 150
    assert [number for number, cells in rows if len(cells) != 3 or not cells[0] or not cells[1]] == []


@pytest.mark.parametrize(("line", "token"), [*_named(missing=False), *_in_third_column()])
def test_what_the_page_names_exists(line: int, token: str):
    assert _exists(token), f"line {line}: there is no {token}"


@pytest.mark.parametrize(("line", "token"), _named(missing=True))
def test_what_the_page_calls_missing_is_missing(line: int, token: str):
    assert not _exists(token), f"line {line}: {token} is there by now"


def test_names_that_nothing_has_are_noticed():
    wrong = (
        "run.teleport()",
        "engine.begin()",
        "ctx.levitate()",
        "perdure teleport",
        "perdure run --backwards",
        "@node(colour=…)",
        "@workflow(colour=…)",
        "EngineSettings.colour",
        "run_statements",
        "run_state.colour",
        "NodeExploded",
        "NodeStarted.colour",
        "engine/teleport.py",
    )

    assert [token for token in wrong if _exists(token)] == []


def _exists(token: str) -> bool:
    """Whether something of this name is there: how it is written tells what it is."""
    name = re.sub(r"\(\)$", "", token)
    if name.startswith("perdure "):
        return _is_command(name.removeprefix("perdure "))
    if option := re.fullmatch(r"@(node|workflow)(?:\((\w+)=…\))?", name):
        return option[2] is None or option[2] in _options(option[1])
    if name.endswith(".py"):
        return (ROOT / "src" / "perdure" / name).is_file()
    owner, dot, member = name.partition(".")
    if dot:
        return _has_member(owner, member)
    return any(name in known() for known in (_tables, _statuses, _public, _lifecycle, _words_of_graphs))


def _has_member(owner: str, member: str) -> bool:
    classes: dict[str, type] = {"engine": Engine, "run": Run, "ctx": Context, "EngineSettings": EngineSettings}
    if owner in classes:
        return hasattr(classes[owner], member) or (owner == "ctx" and member in _FACTS)
    if owner in _tables():
        return member in _tables()[owner]
    event = getattr(events, owner, None)
    return event is not None and member in event.__struct_fields__


def _is_command(line: str) -> bool:
    name, *options = line.split()
    command = commands.get_command(click.Context(commands), name)
    known = set() if command is None else set(chain.from_iterable(parameter.opts for parameter in command.params))
    return command is not None and known >= set(options)


def _options(decorator: str) -> set[str]:
    declared: Callable[..., object] = getattr(perdure, decorator)
    return {*inspect.signature(declared).parameters, *(Policy.__struct_fields__ if decorator == "node" else ())}


@cache
def _tables() -> dict[str, frozenset[str]]:
    """Return the columns of each table and view."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE schema_migrations (number, name, checksum, applied_at)")
    for migration in sorted(files("perdure.store.sqlite").joinpath("migrations").iterdir(), key=lambda file: file.name):
        database.executescript(migration.read_text(encoding="utf-8"))
    names = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')")]
    return {name: frozenset(row[1] for row in database.execute(f"PRAGMA table_info({name})")) for name in names}


@cache
def _statuses() -> frozenset[str]:
    return frozenset((*RunStatus, *NodeStatus))


@cache
def _public() -> frozenset[str]:
    """Return the names that users import, those of errors and those of events."""
    said = (name for module in (errors, events) for name, found in vars(module).items() if inspect.isclass(found))
    return frozenset((*perdure.__all__, *said))


@cache
def _lifecycle() -> frozenset[str]:
    return frozenset((*BEFORE, *ENTRIES, *AFTER))


@cache
def _words_of_graphs() -> frozenset[str]:
    """Return the words that nodes have in graphs with edges and in the short form."""
    short = {"id": "one", "handler": "coming_from", "dependencies": [], "config": {}}
    graph = graph_from_json(json.dumps({"name": "short", "nodes": [short]}))
    assert not graph.nodes[0].extra  # where what is no word of ours is kept
    return frozenset((*short, *Node.__struct_fields__))
