"""How times, numbers, names and values are written for people."""

from __future__ import annotations

import unicodedata
from datetime import datetime
from typing import Any

import msgspec

from perdure.clock import from_micros
from perdure.graph.constants import is_array, is_object
from perdure.journal.events import Encoded, ErrorRecord
from perdure.store.codecs import wire

_ELLIPSIS = "…"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def duration(micros: int) -> str:
    """Return a length of time in at most two units: `412 ms`, `1.3 s`, `2 min 5 s`, `3 d 4 h`."""
    seconds = max(micros, 0) / 1_000_000
    if seconds < 0.0005:
        return "<1 ms"
    if seconds < 0.9995:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for position, (size, unit) in enumerate(_UNITS[:-1]):
        if whole >= size:
            smaller, smaller_unit = _UNITS[position + 1]
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {smaller_unit}" if rest else "")
    raise AssertionError("less than a minute is written above")


def time_of_day(micros: int) -> str:
    """Return a moment as the local clock shows it: `12:03:04`."""
    return _local(micros).strftime("%H:%M:%S")


def day_and_time(micros: int) -> str:
    """Return a moment with its date, in local time."""
    return _local(micros).strftime("%Y-%m-%d %H:%M:%S")


def counted(number: int, noun: str) -> str:
    """Return `1 node`, `3 nodes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def plain(text: str) -> str:
    """Return the text in one line and without anything that a terminal would obey."""
    return "".join(map(_harmless, text)) if not text.isprintable() else text


def plain_lines(text: str) -> str:
    """Return the text with its line ends, and without anything else that a terminal would obey."""
    return "\n".join(plain(line.expandtabs(4)) for line in text.splitlines())


def cells(text: str) -> int:
    """Return how many columns a text takes in a terminal."""
    return len(text) if text.isascii() else sum(map(_cells_of, text))


def fitted(text: str, width: int) -> str:
    """Return the text, cut with an ellipsis if it takes more columns than there are."""
    if cells(text) <= width:
        return text
    kept, room = "", width - 1
    for character in text:
        room -= _cells_of(character)
        if room < 0:
            break
        kept += character
    return kept + _ELLIPSIS if width > 0 else ""


def padded(text: str, width: int) -> str:
    """Return the text cut or filled up to exactly this many columns."""
    cut = fitted(text, width)
    return cut + " " * (width - cells(cut))


def error_line(error: ErrorRecord) -> str:
    """Return an error as one line: what kind of exception, and what it says."""
    name = error.type.removeprefix("builtins.").rpartition(".")[2]
    return plain(f"{name}: {error.message}" if error.message else name)


def value_line(value: Encoded) -> str:
    """Return a stored value in one line, as a person would write it."""
    shown = readable(value)
    return plain(shown if isinstance(shown, str) else msgspec.json.encode(shown).decode())


def value_text(value: Encoded) -> str:
    """Return a stored value in full: a text as it is, anything else as indented JSON."""
    shown = readable(value)
    text = shown if isinstance(shown, str) else msgspec.json.format(msgspec.json.encode(shown), indent=2).decode()
    return plain_lines(text)


def readable(value: Encoded) -> Any:
    """Return what is stored without the tags that only programs need; blobs are named, not read."""
    return _untagged(msgspec.json.decode(value))


def size(number: int) -> str:
    """Return a number of bytes: `512 B`, `1.4 MB`."""
    amount = float(number)
    for unit in ("B", "kB", "MB"):
        if amount < 1_000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_000
    return f"{amount:.1f} GB"


def _untagged(document: Any) -> Any:
    if is_array(document):
        return [_untagged(part) for part in document]
    if not is_object(document):
        return document
    held: Any = document.get(wire.VALUE)
    if document.get(wire.TAG) == wire.BLOB and is_object(held):
        return f"<{size(int(held.get('size', 0)))}, sha256 {str(held.get('sha256', ''))[:12]}>"
    if wire.TAG in document:
        return _untagged(held)
    return {key: _untagged(part) for key, part in document.items()}


def _local(micros: int) -> datetime:
    return from_micros(micros).astimezone()


def _harmless(character: str) -> str:
    if character.isprintable():
        return character
    if character in "\n\r\t":
        return " "
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def _cells_of(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
