"""The errors are one tree in one place, whichever file there declares them."""

from __future__ import annotations

import ast
import inspect
import pickle
import pkgutil
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import perdure
from perdure import PerdureError, errors
from perdure.dispatch.failure import name_of_error
from perdure.ids import type_name


def declared() -> set[type[PerdureError]]:
    """Return the errors of every file of the package, whether it passes them on or not."""
    files = [import_module(f"perdure.errors.{file.name}") for file in pkgutil.iter_modules(errors.__path__)]
    found = {cls for file in files for _, cls in inspect.getmembers(file, inspect.isclass)}
    return {cls for cls in found if issubclass(cls, PerdureError)}


def test_every_error_can_be_imported_from_one_place() -> None:
    offered = {getattr(errors, name) for name in errors.__all__}

    assert declared() == offered - {errors.Fault, errors.DocumentFault}


def test_an_error_is_recorded_under_its_own_name() -> None:
    for cls in declared():
        assert name_of_error(cls) == cls.__name__


@pytest.mark.parametrize("cls", [errors.Fault, errors.DocumentFault])
def test_a_fault_is_stored_under_the_name_of_that_place(cls: type) -> None:
    assert type_name(cls) == f"perdure.errors.{cls.__name__}"


@pytest.mark.parametrize("name", errors.__all__)
def test_another_process_finds_an_error_by_its_name(name: str) -> None:
    cls = getattr(errors, name)

    assert pickle.loads(pickle.dumps(cls)) is cls


# Commands that are copied

AWKWARD = "a b;c"
COMMAND = re.compile(r"`(perdure [^`]*)`")


def commands_named(path: Path) -> Iterator[str]:
    """Yield the commands in the texts of a module, with what is put into them in braces."""
    for text in ast.walk(ast.parse(path.read_text())):
        if isinstance(text, ast.JoinedStr):
            yield from COMMAND.findall("".join(map(_shown, text.values)))


def _shown(part: ast.expr) -> str:
    return f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else str(ast.literal_eval(part))


def test_what_is_put_into_a_command_is_quoted() -> None:
    sources = Path(perdure.__file__).parent.rglob("*.py")
    named = [command for path in sources for command in commands_named(path)]

    filled = [command for command in named if "{" in command]

    assert len(filled) > 20
    assert [command for command in filled if re.search(r"\{(?!quoted\()", command)] == []


@pytest.mark.parametrize(
    "error",
    [
        errors.RunResting(AWKWARD, "suspended", "in doubt: charge"),
        errors.RunEnded(AWKWARD, "completed", "Nothing was sent."),
        errors.RunDamaged(AWKWARD, ["a row is gone"]),
        errors.RunArchived(AWKWARD),
        errors.PlaceNotFound(AWKWARD, "no event 9"),
        errors.NotInDoubt(AWKWARD, "n", "it is idle", ()),
        errors.VersionNotFound(AWKWARD, 7),
    ],
    ids=lambda error: type(error).__name__,
)
def test_commands_that_errors_name_can_be_copied(error: PerdureError) -> None:
    named = COMMAND.findall(str(error))

    assert named
    assert [command for command in named if AWKWARD not in shlex.split(command.replace("|", "/"))] == []
