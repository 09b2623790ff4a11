"""Reading documents whose shape nobody has checked yet: every fault is noted with its place, and reading goes on."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, get_args

import msgspec

from perdure.errors import DocumentFault
from perdure.graph.constants import is_array, is_object
from perdure.graph.model import Input

_INPUT_KEYS = ("name", "schema", "default")


class Reader:
    """Reads the parts of a document and gathers what is wrong with them. What it returns then is only a stand-in."""

    def __init__(self) -> None:
        self.faults: list[DocumentFault] = []

    def fault(self, place: str, message: str) -> None:
        """Note that something is wrong."""
        self.faults.append(DocumentFault(place, message))

    def text(self, item: dict[str, Any], key: str, place: str) -> str:
        """Return a text that must be there."""
        if key not in item:
            self.fault(place or "document", f"{key!r} is missing.")
            return ""
        value = item[key]
        if not isinstance(value, str) or not value:
            self.fault(_inside(place, key), "this is a text that is not empty.")
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
            self.fault(_inside(place, key), "this is an object.")
            return {}
        return value

    def choice(self, item: dict[str, Any], key: str, place: str, kind: object) -> Any:
        """Return one of the words of a Literal, or None if it is missing."""
        value = item.get(key)
        words = get_args(kind)
        if value is None or (isinstance(value, str) and value in words):
            return value
        self.fault(_inside(place, key), f"this is one of {', '.join(words)}.")
        return None

    def objects(
        self, document: dict[str, Any], key: str, *, required: bool = False
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the objects of a list with their places."""
        value = document.get(key)
        if value is None:
            if required:
                self.fault("document", f"{key!r} is missing.")
            return
        if not is_array(value):
            self.fault(key, "this is a list of objects.")
            return
        for number, item in enumerate(value):
            if is_object(item):
                yield f"{key}[{number}]", item
            else:
                self.fault(f"{key}[{number}]", "this is an object.")

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


def _inside(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key
