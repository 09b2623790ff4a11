"""How times, numbers, names and values are written for people."""

from __future__ import annotations

import binascii
import math
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from perdure.clock import from_micros
from perdure.dispatch.failure import storable
from perdure.graph.constants import is_array, is_object
from perdure.journal.events import Encoded, ErrorRecord
from perdure.journal.resting import SLEEPS
from perdure.store.codecs import arrays, wire

SHORT_LIST_CHARS = 80
"""A list that takes no more is written in one line."""
MOST_ITEMS = 100
"""Larger arrays are described, not written out."""
TIME_IS_OVER = "its time is over"
"""What is said of whoever has waited until some time, and has yet to be taken up."""

_ELLIPSIS = "…"
_NOTES = ("$unset", "$extra")
"""What is stored beside the fields of a pydantic model."""
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


def until(micros: int, *, now: int) -> str:
    """Return a moment to come, in local time: with its date, unless that is the one of `now`."""
    return time_of_day(micros) if _local(micros).date() == _local(now).date() else day_and_time(micros)


def limit(due: int | None, *, now: int) -> str:
    """Return how long something is waited for, as it follows what that is: `, until 13:14:23`."""
    if due is None:
        return ""
    return f", until {until(due, now=now)}" if now < due else f"; {TIME_IS_OVER}"


def waking(reason: str, wake_at: int | None, *, now: int) -> str:
    """Return when time itself moves a run that rests for some reason: what it waits for may have more time than that."""
    if wake_at is None:
        return ""
    if wake_at <= now:
        return f"; {TIME_IS_OVER}"
    return f"{', until' if reason == SLEEPS else '; wakes at'} {until(wake_at, now=now)}"


def counted(number: int, noun: str) -> str:
    """Return `1 node`, `3 nodes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def item_names(ranges: Sequence[tuple[int, int]], most: int = 8) -> str:
    """Name items of a map, by ranges of positions."""
    named = [str(first) if count == 1 else f"{first}-{first + count - 1}" for first, count in ranges[:most]]
    more = f" and {len(ranges) - most} more" if len(ranges) > most else ""
    is_one = len(ranges) == 1 and ranges[0][1] == 1
    return f"{'item' if is_one else 'items'} {', '.join(named)}{more}"


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
    """Return a stored value in full: a text as it is, anything else as JSON, indented unless it is a short list."""
    return plain_lines(in_full(readable(value)))


def in_full(shown: Any) -> str:
    """Return what `readable` has returned as text."""
    if isinstance(shown, str):
        return shown
    encoded = msgspec.json.encode(shown)
    is_short = is_array(shown) and len(encoded) <= SHORT_LIST_CHARS and not any(map(is_object, shown))
    return msgspec.json.format(encoded, indent=0 if is_short else 2).decode()


def exactly(value: Encoded) -> str | bytes:
    """Return a stored value as a file would hold it: a text or bytes as they are, anything else as JSON."""
    document = msgspec.json.decode(value)
    content = _bytes_in(document) if is_object(document) else None
    return content if content is not None else in_full(_untagged(document))


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
    match document.get(wire.TAG):
        case None:
            return {key: _untagged(part) for key, part in document.items()}
        case wire.BLOB if is_object(held):
            return f"<{size(int(held.get('size', 0)))}, sha256 {str(held.get('sha256', ''))[:12]}>"
        case "bytes" | "bytearray" if (content := _bytes_in(document)) is not None:
            return repr(content)
        case "int" if isinstance(held, str):
            return int(held, 0)
        case "str" if isinstance(held, str):  # it has halves of characters, which only Python can hold
            return storable(binascii.a2b_base64(held).decode("utf-8", "surrogatepass"))
        case wire.PAIRS if is_array(held):
            return {in_full(_untagged(key)): _untagged(part) for key, part in held}
        case arrays.SCALAR_TAG | arrays.ARRAY_TAG if is_object(held):
            return _array(held)
        case _:
            shown = _untagged(held)
            return {key: part for key, part in shown.items() if key not in _NOTES} if is_object(shown) else shown


def is_beyond_text(value: Encoded) -> bool:
    """Whether something in a value is shown as a text that is another one: bytes, and texts that UTF-8 cannot hold."""
    parts = [msgspec.json.decode(value)]
    while parts:
        part = parts.pop()
        if is_object(part):
            if part.get(wire.TAG) in ("bytes", "bytearray", "str"):
                return True
            parts += part.values()
        elif is_array(part):
            parts += part
    return False


def _bytes_in(document: Any) -> bytes | None:
    """Return the bytes that a document stands for; None if it does not stand for bytes, or they are elsewhere."""
    while is_object(document) and document.get(wire.TAG) in ("bytes", "bytearray"):
        document = document.get(wire.VALUE)
    return binascii.a2b_base64(document) if isinstance(document, str) else None


def _array(held: dict[str, Any]) -> Any:
    """Return the items of a small array, a description of a large one."""
    shape: list[int] = held.get("shape", [])
    content = _bytes_in(held.get("data"))
    if content is None or math.prod(shape) > MOST_ITEMS:
        return f"<array of {held.get('dtype')}, shape {tuple(shape)}>"
    try:
        items: Any = arrays.array_from_plain({**held, "data": content}).tolist()
        msgspec.json.encode(items)
    except Exception:  # numpy is not there, or the items are of no kind that JSON has
        return f"<array of {held.get('dtype')}, shape {tuple(shape)}>"
    return items


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
