"""The errors are one tree in one place, whichever file there declares them."""

from __future__ import annotations

import inspect
import pickle
import pkgutil
from importlib import import_module

import pytest

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
