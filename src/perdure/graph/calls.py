"""Calls: which input gets which argument."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perdure.errors import InvalidCall
from perdure.graph.handles import Handle
from perdure.graph.refs import place_of_call


def bind_arguments(
    subject: str, inputs: Sequence[Handle], args: Sequence[Any], kwargs: Mapping[str, Any], *, is_open: bool = False
) -> dict[str, Any]:
    """Return which input gets which argument. Raises InvalidCall with all that is wrong.

    An open subject takes any name besides its inputs.
    """
    positional = [handle.name for handle in inputs if not handle.keyword_only]
    names = {handle.name for handle in inputs}
    bound = dict(zip(positional, args, strict=False))
    problems: list[str] = []
    if len(args) > len(positional):
        problems.append(f"it takes {len(positional)} values by position, not {len(args)}.")
    problems.extend(f"{name!r} is given twice." for name in kwargs if name in bound)
    if not is_open:
        problems.extend(_unknown_input(name, names) for name in kwargs if name not in names)
    bound.update(kwargs)
    missing = [handle.name for handle in inputs if handle.required and handle.name not in bound]
    problems.extend(f"{name!r} is missing." for name in missing)
    if problems:
        raise InvalidCall(subject, problems, place_of_call())
    return bound


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return a guess at the word that was meant, in parentheses; nothing if none is close."""
    close = difflib.get_close_matches(word, list(words), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _unknown_input(name: str, names: Iterable[str]) -> str:
    known = ", ".join(sorted(names)) or "no inputs"
    return f"it has no input {name!r}{did_you_mean(name, names)}. It has {known}."
