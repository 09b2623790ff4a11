"""YAML as plain data: what JSON can say, with fewer quotes.

Read is YAML's core schema. Refused is what goes beyond JSON: anchors, tags, keys that are no texts or appear twice,
several documents in one. Only `true` and `false` are truth values; `yes`, `on` and dates are texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from perdure.errors import DocumentFault, UnreadableGraph
from perdure.graph.constants import MAX_DEPTH, is_array, is_object
from perdure.graph.documents import decoded, plain, too_deep, whole_number

_NULL = re.compile(r"null|Null|NULL|~|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")

# What every reader of YAML takes for a text without quotes, also those that know more words for true and false than we.
_SAFE_TEXT = re.compile(r"[A-Za-z_]([A-Za-z0-9_ ./-]*[A-Za-z0-9_])?")
_UNSAFE_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_SAFE_LINE = re.compile(r"[!-~]([ -~]*[!-~])?")


def parse_yaml(text: str | bytes) -> Any:
    """Return what a YAML text says. Raises UnreadableGraph with all that is wrong."""
    import yaml

    builder = _Builder()
    try:
        for event in cast("Any", yaml).parse(decoded(text), Loader=yaml.SafeLoader):
            builder.take(event)
            if builder.is_too_deep:
                break
    except yaml.YAMLError as error:
        builder.faults.append(_syntax_fault(error))
    if builder.faults:
        raise UnreadableGraph(builder.faults)
    return plain(builder.root)


def write_yaml(document: Any) -> str:
    """Return the YAML text of plain data, with keys in their order."""
    import yaml

    emitted = cast("Any", yaml).emit(_document_events(document), allow_unicode=True, width=120)
    return cast("str", emitted)


class _Builder:
    """Puts together what the parser finds. It does not recurse, and goes on after a fault."""

    def __init__(self) -> None:
        self.root: Any = None
        self.faults: list[DocumentFault] = []
        self.is_too_deep = False
        """Whether there is no point in going on: the parser takes long over what is nested very deep."""
        self._open: list[list[Any] | _Mapping] = []
        self._documents = 0

    def take(self, event: Any) -> None:
        """Take the next event of the parser."""
        match type(event).__name__:
            case "DocumentStartEvent":
                self._documents += 1
                if self._documents == 2:
                    self._fault(event, "a second document begins: only one is read.")
            case "ScalarEvent":
                self._refuse_extras(event)
                self._put(_scalar(event), event)
            case "AliasEvent":
                self._fault(event, "anchors are not read: write it out.")
                self._put(None, event)
            case "SequenceStartEvent":
                self._start([], event)
            case "MappingStartEvent":
                self._start(_Mapping(), event)
            case "SequenceEndEvent" | "MappingEndEvent":
                self._open.pop()
            case _:
                pass

    def _start(self, container: list[Any] | _Mapping, event: Any) -> None:
        self._refuse_extras(event)
        self._put(container.members if isinstance(container, _Mapping) else container, event)
        self._open.append(container)
        if len(self._open) > MAX_DEPTH:
            self.is_too_deep = True
            self.faults.append(too_deep(_place(event.start_mark)))

    def _put(self, value: Any, event: Any) -> None:
        if not self._open:
            self.root = value
            return
        container = self._open[-1]
        if isinstance(container, list):
            container.append(value)
        elif container.awaits_key:
            self._check_key(container, value, event)
            container.key = value if isinstance(value, str) else ""
            container.awaits_key = False
        else:
            container.members[container.key] = value
            container.awaits_key = True

    def _check_key(self, container: _Mapping, key: Any, event: Any) -> None:
        if not isinstance(key, str):
            self._fault(event, "a key is not a text. (A text that begins with {{ needs quotes.)")
        elif key in container.members:
            self._fault(event, f"the key {key!r} appears twice.")

    def _refuse_extras(self, event: Any) -> None:
        if event.anchor is not None:
            self._fault(event, "anchors are not read: write it out.")
        if event.tag is not None:
            self._fault(event, f"the tag {event.tag!r} is not read.")

    def _fault(self, event: Any, message: str) -> None:
        self.faults.append(DocumentFault(_place(event.start_mark), message))


class _Mapping:
    """A mapping that is being read."""

    def __init__(self) -> None:
        self.members: dict[str, Any] = {}
        self.key = ""
        self.awaits_key = True


def _scalar(event: Any) -> Any:
    value: str = event.value
    if event.style is not None:
        return value
    if _NULL.fullmatch(value):
        return None
    if _BOOL.fullmatch(value):
        return value.lower() == "true"
    if _INT.fullmatch(value):
        return whole_number(value)
    if _FLOAT.fullmatch(value):
        return float(re.sub(r"\.(?=inf|nan)", "", value.lower()))
    return value


def _syntax_fault(error: Any) -> DocumentFault:
    context = f"{error.context}: " if getattr(error, "context", None) else ""
    problem = getattr(error, "problem", None) or str(error)
    return DocumentFault(_place(getattr(error, "problem_mark", None)), f"this is not YAML: {context}{problem}.")


def _place(mark: Any) -> str:
    return "document" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"


def _document_events(document: Any) -> Iterator[Any]:
    import yaml

    yield yaml.StreamStartEvent()
    yield yaml.DocumentStartEvent(explicit=False)
    yield from _value_events(document)
    yield yaml.DocumentEndEvent(explicit=False)
    yield yaml.StreamEndEvent()


def _value_events(value: Any) -> Iterator[Any]:
    import yaml

    if is_object(value):
        yield yaml.MappingStartEvent(None, None, True, flow_style=not value)
        for key, member in value.items():
            yield from _value_events(key)
            yield from _value_events(member)
        yield yaml.MappingEndEvent()
    elif is_array(value):
        yield yaml.SequenceStartEvent(None, None, True, flow_style=not value)
        for member in value:
            yield from _value_events(member)
        yield yaml.SequenceEndEvent()
    else:
        written, style = _written(value)
        yield yaml.ScalarEvent(None, None, (style is None, True), written, style=style)


def _written(value: Any) -> tuple[str, str | None]:
    """Return a scalar as YAML writes it, and the quotes it needs."""
    if isinstance(value, str):
        return value, _quotes(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value], None
    written = repr(value)
    # Without a point, some readers take 1e+16 for a text.
    return (written.replace("e", ".0e") if "e" in written and "." not in written else written), None


def _quotes(text: str) -> str | None:
    if _SAFE_TEXT.fullmatch(text) and text.lower() not in _UNSAFE_WORDS:
        return None
    lines = text.removesuffix("\n").split("\n")
    return "|" if len(lines) > 1 and all(map(_SAFE_LINE.fullmatch, lines)) else '"'
