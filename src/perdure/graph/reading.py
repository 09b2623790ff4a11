"""Reading documents whose shape nobody has checked yet: every fault is noted with its place, and reading goes on."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from typing import Any, get_args

import msgspec

from perdure.errors import DocumentFault
from perdure.graph.constants import is_array, is_object
from perdure.graph.model import Input

_INPUT_KEYS = ("name", "schema", "default")
_LONGEST_GUESSED = 30
_LONGEST_SHOWN = 40
_MOST_KEYS = 100
"""Among how many keys of an object it is looked for one that is misspelt."""
_LIKENESS_OF_WHAT_IS_MISSING = 0.7
"""How much alike a key has to be to one that must be there and is not. It is only a guess."""


class Reader:
    """Reads the parts of a document and gathers what is wrong with them. What it returns then is only a stand-in."""

    def __init__(self) -> None:
        self.faults: list[DocumentFault] = []

    def fault(self, place: str, message: str) -> None:
        """Note that something is wrong."""
        self.faults.append(DocumentFault(place, message))

    def other(self, place: str, wanted: str, value: object) -> None:
        """Note that something is not what it has to be."""
        self.fault(place, _other(wanted, value))

    def missing(self, item: dict[str, Any], key: str, place: str) -> None:
        """Note that a key is not there, and which one may have been meant to be it."""
        others = [name for name in list(item)[:_MOST_KEYS] if name != key]
        near = nearest_key(key, others, likeness=_LIKENESS_OF_WHAT_IS_MISSING)
        hint = "" if near is None else f" If {near!r} is meant to be it, correct it."
        self.fault(place or "document", f"{key!r} is missing.{hint}")

    def text(self, item: dict[str, Any], key: str, place: str) -> str:
        """Return a text that must be there."""
        if key not in item:
            self.missing(item, key, place)
            return ""
        value = item[key]
        if not isinstance(value, str) or not value:
            self.fault(_inside(place, key), _other("a text that is not empty", value))
            return ""
        return value

    def optional_text(self, item: dict[str, Any], key: str, place: str) -> str | None:
        """Return a text that may be missing or null."""
        return None if item.get(key) is None else self.text(item, key, place)

    def mapping(self, item: dict[str, Any], key: str, place: str) -> dict[str, Any]:
        """Return an object that may be missing."""
        value = item.get(key)
        if value is None:
            return {}
        if not is_object(value):
            self.fault(_inside(place, key), _other("an object", value))
            return {}
        return value

    def choice(self, item: dict[str, Any], key: str, place: str, kind: object) -> Any:
        """Return one of the words of a Literal, or None if it is missing."""
        value = item.get(key)
        words = get_args(kind)
        if value is None or (isinstance(value, str) and value in words):
            return value
        self.fault(_inside(place, key), _other(f"one of {', '.join(words)}", value))
        return None

    def objects(
        self, document: dict[str, Any], key: str, *, required: bool = False
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the objects of a list with their places."""
        value = document.get(key)
        if value is None:
            if required:
                self.missing(document, key, "")
            return
        if not is_array(value):
            self.fault(key, _other("a list of objects", value))
            return
        for number, item in enumerate(value):
            if is_object(item):
                yield f"{key}[{number}]", item
            else:
                self.fault(f"{key}[{number}]", _other("an object", item))

    def inputs(self, document: dict[str, Any]) -> tuple[Input, ...]:
        """Return the inputs of the workflow: objects with a name, or only names."""
        named = document.get("inputs")
        if is_array(named):
            items = [{"name": item} if isinstance(item, str) else item for item in named]
            document = {**document, "inputs": items}
        return tuple(self._input(item, place) for place, item in self.objects(document, "inputs"))

    def others(self, item: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
        """Return the keys that are not ours."""
        return {key: value for key, value in item.items() if key not in known}

    def _input(self, item: dict[str, Any], place: str) -> Input:
        for key in item:
            if key not in _INPUT_KEYS:
                self.fault(_inside(place, key), f"an input has only {', '.join(_INPUT_KEYS)}.")
        default = item.get("default", msgspec.UNSET)
        name = self.text(item, "name", place)
        return Input(name=name, schema=self.mapping(item, "schema", place), default=default)


def nearest_key(word: str, keys: Iterable[str], *, likeness: float) -> str | None:
    """Return the key that is spelt most like a word; None if none is spelt enough like it. Capitals and dashes do not count."""
    if len(word) > _LONGEST_GUESSED:
        return None
    spelt = {bare_key(key): key for key in keys if len(key) <= _LONGEST_GUESSED}
    close = difflib.get_close_matches(bare_key(word), spelt, n=1, cutoff=likeness)
    return spelt[close[0]] if close else None


def bare_key(key: str) -> str:
    """Return a key without what people write differently."""
    return key.lower().replace("_", "").replace("-", "").replace(" ", "")


def _other(wanted: str, value: object) -> str:
    return f"this has to be {wanted}, and is {_described(value)}."


def _described(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return f"a truth value ({'true' if value else 'false'})"
        case "":
            return "an empty text"
        case str():
            shown = value if len(value) <= _LONGEST_SHOWN else f"{value[: _LONGEST_SHOWN - 1]}…"
            return f"a text ({shown!r})"
        case int() | float():
            return f"a number ({value})"
        case _:
            return "a list" if is_array(value) else "an object"


def _inside(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key
