"""Errors of bodies as plain data: what the journal keeps of one, and what another process can say of it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from perdure.errors import BodyRaised
from perdure.ids import type_name

MESSAGE_MAX_CHARS = 8_192
TRACEBACK_MAX_CHARS = 65_536

_PLACES = tuple(str(Path(__file__).with_name(name)) for name in ("places.py", "outlets.py"))
_DOORS = ("invoke", "conclude", "_part", "call_here")
"""The functions there through which every part of a body is called."""
_MACHINERY = frozenset(("perdure", "asyncio", "concurrent", "threading"))
"""The packages whose code runs bodies, and is none of them."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of an error: always text that can be stored, and never longer than the limits above."""

    type_names: tuple[str, ...]
    """The stored names of its class and of the bases of that, nearest first."""
    message: str
    traceback: str = ""
    """Empty if perdure itself has found something wrong: then the message says it all."""
    error_class: str | None = None
    """What kind of thing went wrong, if the error itself says so."""

    @property
    def type_name(self) -> str:
        return self.type_names[0]

    def is_a(self, *kinds: type[BaseException] | str) -> bool:
        """Whether the error was of one of these classes, in whichever process it was raised.

        A class may be named instead: in full, or without its module. Classes of Python's own stand for others of that name, too:
        a `ConnectionError` is one in every package. Those of perdure's stand for nothing else.
        """
        return any(self._is_named(kind) if isinstance(kind, str) else self._is_of(kind) for kind in kinds)

    def _is_of(self, cls: type[BaseException]) -> bool:
        name = name_of_error(cls)
        return name in self.type_names if _package(cls.__module__) == "perdure" else self._is_named(name)

    def _is_named(self, name: str) -> bool:
        if _package(name) == "perdure":  # in full; their modules are not stored
            return name.rpartition(".")[2] in self.type_names
        return name in self.type_names or any(full.endswith("." + name) for full in self.type_names)


def failure_of(error: BaseException) -> Failure:
    """Return what is kept of an error, whether its body ran here or in another process."""
    if isinstance(error, BodyRaised):
        return Failure(
            type_names=error.type_names,
            message=error.message,
            traceback=error.traceback or _formatted(error),
            error_class=error.error_class,
        )
    said = getattr(error, "error_class", None)
    return Failure(
        type_names=tuple(name_of_error(cls) for cls in type(error).__mro__ if issubclass(cls, BaseException)),
        message=_message(error),
        traceback=_formatted(error),
        error_class=said if isinstance(said, str) else None,
    )


def raised(failure: Failure) -> BodyRaised:
    """Return the error that stands for a failure whose own class is not to be raised here."""
    return BodyRaised(failure.type_names, failure.message, failure.traceback, error_class=failure.error_class)


def contained(error: BaseException) -> Exception:
    """Return the error as one that ends only its attempt: what would end a task, a thread or the program is wrapped."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = raised(failure_of(error))
    wrapped.__cause__ = error
    return wrapped


def name_of_error(cls: type[BaseException]) -> str:
    """Return the name by which an error's class is known in the journal and in other processes. Python's own and perdure's own
    have no module in front of it: where those of perdure's are is nothing to rely on."""
    return cls.__qualname__ if _package(cls.__module__) in ("builtins", "perdure") else type_name(cls)


def storable(text: str) -> str:
    """Return the text with what UTF-8 has no form for spelt out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def plain_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a log line as JSON. Logging must not fail: what has no JSON form is shown as Python shows it."""
    plain: dict[str, Any] = {}
    for name, value in fields.items():
        try:
            plain[name] = msgspec.json.decode(msgspec.json.encode(value, enc_hook=repr))
        except Exception:  # a value of any type may be logged, and its own code may raise anything
            plain[name] = storable(object.__repr__(value))
    return plain


def _message(error: BaseException) -> str:
    try:
        return _shortened(storable(str(error)), MESSAGE_MAX_CHARS)
    except Exception as problem:  # `__str__` is the body's own code, and may raise anything
        return f"(its message cannot be shown: {type(problem).__name__})"


def _formatted(error: BaseException) -> str:
    if _is_of_perdure_alone(error):
        return ""
    try:
        lines = traceback.format_exception(type(error), error, _from_the_body_on(error.__traceback__))
    except Exception as problem:  # formatting calls the body's own code, such as a `__repr__`
        return f"(its traceback cannot be shown: {type(problem).__name__})"
    return _shortened(storable("".join(lines)), TRACEBACK_MAX_CHARS)


def _is_of_perdure_alone(error: BaseException) -> bool:
    """Whether the error is one of perdure's own, and no other code had a part in it, or a word to add."""
    if _package(type(error).__module__) != "perdure":
        return False
    seen: set[int] = set()  # causes may go round in a circle
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if getattr(current, "__notes__", ()) or not _MACHINERY.issuperset(_packages_in(current.__traceback__)):
            return False
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)
    return True


def _packages_in(entry: TracebackType | None) -> Iterator[str]:
    while entry is not None:
        yield _package(entry.tb_frame.f_globals.get("__name__", ""))
        entry = entry.tb_next


def _package(module: str) -> str:
    return module.partition(".")[0]


def _from_the_body_on(entry: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames through which the body was called; all of it if it was not called."""
    is_entered = False
    current = entry
    while current is not None:
        code = current.tb_frame.f_code
        if code.co_filename in _PLACES:
            is_entered = is_entered or code.co_name in _DOORS
        elif is_entered:
            return current
        current = current.tb_next
    return entry


def _shortened(text: str, most: int) -> str:
    """The end tells the most, and the beginning the next most."""
    if len(text) <= most:
        return text
    gap = f"\n… ({len(text) - most:,} characters left out) …\n"
    head = most // 4
    return text[:head] + gap + text[len(text) - (most - head) :]
