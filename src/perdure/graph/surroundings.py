"""The models that stand around a function: what it may have stored without any handle being annotated with it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, Union

from perdure.graph.handles import hints_of

_NO_MODELS = frozenset((*sys.stdlib_module_names, "msgspec", "perdure", "pydantic"))
"""Packages whose classes are no user's models, only their bases: to know one of these would be to know every model."""


def models_around(function: Callable[..., Any]) -> Any:
    """Return an annotation for what a function may have stored: what it says it returns, and classes in its module."""
    function = inspect.unwrap(function)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    around = vars(module).values() if module is not None else ()
    classes = [found for found in tuple(around) if isinstance(found, type) and _may_be_model(found)]
    returned = hints_of(function).get("return", Any) if inspect.isroutine(function) else Any
    return Union[(returned, *classes)]


def _may_be_model(found: type) -> bool:
    return found.__module__.partition(".")[0] not in _NO_MODELS
