"""What conditions see of a result: whether it is true, decided where it still is what the body returned.

The encoded form does not tell it of everything: an enum member is stored as its name, and a class may say by itself what is
true (`__bool__`, `__len__`). What it does tell (numbers, texts, lists, dicts and the like) is not judged here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from perdure.errors import TruthUnclear
from perdure.graph.handles import Outputs
from perdure.graph.model import DEFAULT_OUTPUT
from perdure.journal.values import truth_handle

Look = tuple[str, tuple[str | int, ...]]
"""What a condition looks at: an output handle, and the way to a part of its value."""

_PLAIN: Final = frozenset((bool, int, float, str, type(None), list, dict))


def by_handle(result: Any) -> Mapping[str, Any]:
    """Return what a body returned, by output handle."""
    return result.handles() if isinstance(result, Outputs) else {DEFAULT_OUTPUT: result}


def truths_of(named: Mapping[str, Any], looks: Sequence[Look], node_id: str) -> dict[str, bool]:
    """Return what Python's `bool` says of the parts that conditions look at, by the names under which it is kept.

    Raises TruthUnclear where it says nothing.
    """
    truths: dict[str, bool] = {}
    for handle, path in looks:
        if handle not in named:
            continue
        try:
            part = _part(named[handle], path)
        except LookupError:  # what is not there is not true, as the encoded value tells
            continue
        if type(part) not in _PLAIN:
            truths[truth_handle(handle, path)] = _truth(part, node_id)
    return truths


def _part(value: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        match value:
            case dict():
                value = cast("dict[Any, Any]", value)[step]
            case list() | tuple() if isinstance(step, int):
                value = cast("Sequence[Any]", value)[step]
            case _ if isinstance(step, str) and hasattr(value, step):
                value = getattr(value, step)
            case _:
                raise LookupError(step)
    return value


def _truth(part: Any, node_id: str) -> bool:
    try:
        return bool(part)
    except Exception as error:  # `__bool__` is user code, and may raise anything
        raise TruthUnclear(node_id, type(part).__name__, error) from error
