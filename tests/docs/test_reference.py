"""The documentation leaves nothing out: what the program offers is on the page where a reader looks for it."""

from __future__ import annotations

import builtins
import inspect
import re
import sqlite3
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import click
import msgspec
import pytest

import perdure
from perdure import Context, Engine, EngineSettings, PerdureError, Run, SyncContext, errors
from perdure.cli.entry import SECTIONS, commands
from perdure.cli.exits import Exit
from perdure.dispatch.failure import failure_of
from perdure.engine.attempts.failures import classify
from perdure.graph import validate
from perdure.graph.policy import Policy
from perdure.journal.ailments import CATALOGUE
from perdure.journal.events import ErrorClass
from perdure.testing import Rehearsal, WatchedRun
from tests.docs.pages import PAGES, ROOT

COMMANDS = [name for section in SECTIONS.values() for name in section]
NOT_FOR_USERS = frozenset(
    (
        "adopt",
        "begin_run",
        "commanded",
        "driver_of",
        "fed",
        "graph_of",
        "news",
        "not_readable",
        "prepared",
        "take_as_begun",
        "write_trail",
    )
)
"""Methods of an engine that its parts use among themselves."""


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def rows(text: str) -> dict[str, str]:
    """Return the rows of all tables of a page by the names in their first cells."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("|"):
            cells = line.split("|")
            found.update(dict.fromkeys(re.findall(r"`([^`]+)`", cells[1]), line))
    return found


def section(text: str, title: str) -> str:
    """Return what stands under a heading."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no heading {title!r}"
    return found[1]


def public_methods(cls: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(cls, callable) if not name.startswith("_")}


def error_types() -> list[type[PerdureError]]:
    return [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, PerdureError)]


@pytest.mark.parametrize("cls", error_types(), ids=lambda cls: cls.__name__)
def test_every_error_is_explained(cls: type[PerdureError]):
    explained = rows(page("errors"))

    assert f"`{cls.code}`" in explained.get(cls.__name__, "")


def test_every_error_that_is_explained_exists():
    names = {name for name in rows(page("errors")) if name[0].isupper()}

    assert names - {cls.__name__ for cls in error_types()} == {
        "AttemptTimeout",
        "InputUnusable",
        "RunTimeout",
        "InDoubt",
    }


@pytest.mark.parametrize("error_class", ErrorClass)
def test_every_error_class_is_explained(error_class: ErrorClass):
    explained = rows(section(page("nodes"), "Failures and retries"))[error_class.value]

    for name in re.findall(r"`(\w*Error)`", explained):
        raised = getattr(builtins, name, None) or type(name, (Exception,), {})
        assert classify(failure_of(raised())) is error_class


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_explained_with_its_options(name: str):
    command = commands.get_command(click.Context(commands), name)
    assert command is not None
    explained = section(page("cli"), name)
    shared = page("cli")[: page("cli").index("## run")]

    options = [option for parameter in command.params for option in parameter.opts if option.startswith("-")]

    assert f"perdure {name}" in explained
    assert [option for option in options if option not in explained and option not in shared] == []


def test_every_exit_code_is_explained():
    codes = {
        int(code) for code in re.findall(r"^\| ([\d, ]+) \|", page("cli"), re.MULTILINE) for code in code.split(",")
    }

    assert codes >= set(Exit)


def test_every_option_of_a_node_is_explained():
    explained = section(page("nodes"), "Policies")

    assert [name for name in ("name", *Policy.__struct_fields__) if f"`{name}`" not in explained] == []


@pytest.mark.parametrize("cls", [Context, SyncContext])
def test_every_member_of_the_context_is_explained(cls: type):
    explained = " ".join(rows(section(page("nodes"), "The context")))
    facts = {"run_id", "node_id", "attempt", "item", "idempotency_key", "log", "restored", "cancelled"}
    members = public_methods(cls) | facts

    assert [name for name in sorted(members) if f"ctx.{name}" not in explained] == []


def test_every_setting_of_an_engine_is_explained_with_its_default():
    explained = rows(section(page("running"), "Settings"))

    assert explained.keys() >= set(EngineSettings.__struct_fields__)
    for field in msgspec.structs.fields(EngineSettings):
        if field.name != "processes":
            stated = explained[field.name].split("|")[2].strip(" `")
            assert stated == str(field.default).removesuffix(".0")


def test_every_method_of_an_engine_and_a_run_is_explained():
    explained = page("running")

    assert [name for name in sorted(public_methods(Run)) if f"run.{name}(" not in explained] == []
    assert [name for name in sorted(public_methods(Engine) - NOT_FOR_USERS) if f"engine.{name}(" not in explained] == []


def test_every_parameter_of_an_engine_is_explained_or_only_for_tests():
    explained = rows(section(page("running"), "An engine"))

    parameters = inspect.signature(Engine).parameters.keys() - {"codecs", "dispatch", "clock", "chance"}

    assert parameters <= explained.keys()


@pytest.mark.parametrize(("cls", "name"), [(Rehearsal, "perdure"), (WatchedRun, "run")], ids=["fixture", "run"])
def test_everything_that_users_test_with_is_explained(cls: type, name: str):
    offered = {member for member in vars(cls) if not member.startswith("_")} - {"close"}

    assert [member for member in sorted(offered) if f"`{name}.{member}" not in page("testing")] == []


def test_every_rule_of_validation_is_explained():
    explained = rows(section(page("graphs"), "Validation"))

    assert explained.keys() >= rows(validate.__doc__ or "").keys()


def test_every_table_and_column_is_explained():
    explained = section(page("stores"), "Tables")
    database = sqlite3.connect(":memory:")
    for migration in sorted(files("perdure.store.sqlite").joinpath("migrations").iterdir(), key=lambda file: file.name):
        database.executescript(migration.read_text(encoding="utf-8"))
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')")]

    missing = [
        f"{table}.{column}"
        for table in tables
        for column in _columns(database, table)
        if f"`{column}`" not in explained
    ]

    assert [table for table in tables if f"`{table}`" not in explained] == []
    assert [name for name in missing if not name.startswith(("workflows.", "run_projections.", "run_leases."))] == []


def _columns(database: sqlite3.Connection, table: str) -> Iterator[str]:
    return (row[1] for row in database.execute(f"PRAGMA table_info({table})"))


def test_every_public_name_is_mentioned():
    everything = "".join(path.read_text(encoding="utf-8") for path in PAGES)

    assert [name for name in perdure.__all__ if not re.search(rf"\b{name}\b", everything)] == []


def test_every_test_that_is_cited_exists():
    cited = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page("guarantees"))

    assert len(cited) > 20
    assert [f"{file}::{name}" for file, name in cited if not _has_test(ROOT / file, name)] == []


def _has_test(file: Path, name: str) -> bool:
    return (
        file.is_file()
        and re.search(rf"^\s*(async )?def {name}\(", file.read_text(encoding="utf-8"), re.MULTILINE) is not None
    )


def test_the_whole_catalogue_of_the_doctor_is_explained():
    explained = rows(section(page("doctor"), "The catalogue"))

    for ailment in CATALOGUE.values():
        row = explained[ailment.code]
        assert ailment.title in row
        assert ailment.explanation in row
        assert ailment.remedy in row
        assert ("no issue" in row) is not ailment.is_issue
