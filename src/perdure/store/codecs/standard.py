"""Codecs for types of the standard library.

They hold for exactly these types: a subclass knows something more (a time zone, nanoseconds, a default), which would be
lost without a word.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, Final, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from perdure.store.codecs.codec import Codec, Conversion, Refusal, expect, expect_dict, expect_list

Moment = TypeVar("Moment", datetime, time)


def _moment_to_plain(moment: datetime | time) -> Any:
    """ISO 8601 says all there is to say, except for a named time zone and for the second of two equal clock times."""
    zone = moment.tzinfo
    if zone is not None and not isinstance(zone, timezone | ZoneInfo):
        raise Refusal(
            type(moment),
            f"its time zone is a {type(zone).__module__}.{type(zone).__qualname__}",
            "Use datetime.timezone or zoneinfo.ZoneInfo.",
        )
    if not isinstance(zone, ZoneInfo) and not moment.fold:
        return moment.isoformat()
    if not isinstance(zone, ZoneInfo):
        return {"iso": moment.isoformat(), "fold": moment.fold}
    if not zone.key:
        raise Refusal(type(moment), "its time zone has no name", "Use a zoneinfo.ZoneInfo made from a name.")
    return {"iso": moment.replace(tzinfo=None).isoformat(), "fold": moment.fold, "zone": zone.key}


def _moment_from_plain(kind: type[Moment], data: Any) -> Moment:
    if isinstance(data, str):
        return kind.fromisoformat(data)
    moment = kind.fromisoformat(data["iso"]).replace(fold=data["fold"])
    return moment.replace(tzinfo=ZoneInfo(data["zone"])) if "zone" in data else moment


def _datetime_from_plain(data: Any) -> datetime:
    return _moment_from_plain(datetime, data)


def _time_from_plain(data: Any) -> time:
    return _moment_from_plain(time, data)


def _tuple_from_plain(data: Any) -> tuple[Any, ...]:
    return tuple(expect_list(data))


def _counter_from_plain(data: Any) -> Counter[Any]:
    return Counter(expect_dict(data))


def _complex_from_plain(data: Any) -> complex:
    real, imaginary = data
    return complex(expect(real, float), expect(imaginary, float))


def _deque_from_plain(data: Any) -> deque[Any]:
    items, max_length = data
    return deque(expect_list(items), max_length)


def _fraction_from_plain(data: Any) -> Fraction:
    numerator, denominator = data
    return Fraction(expect(numerator, int), expect(denominator, int))


def _text_path(path: PurePath) -> str:
    return str(path)


# A path keeps its meaning on a machine of the other kind only if it is pure.
_HERE: Final[type[PurePath]] = PosixPath if issubclass(PosixPath, type(PurePath())) else WindowsPath

STANDARD: Final[tuple[Codec, ...]] = (
    Conversion("tuple", tuple, list, _tuple_from_plain),
    Conversion("bytearray", bytearray, bytes, lambda data: bytearray(expect(data, bytes))),
    Conversion("datetime", datetime, _moment_to_plain, _datetime_from_plain),
    Conversion("date", date, date.isoformat, lambda data: date.fromisoformat(data)),
    Conversion("time", time, _moment_to_plain, _time_from_plain),
    Conversion(
        "timedelta", timedelta, lambda span: [span.days, span.seconds, span.microseconds], lambda data: timedelta(*data)
    ),
    Conversion("decimal", Decimal, str, lambda data: Decimal(expect(data, str))),
    Conversion("fraction", Fraction, lambda number: [number.numerator, number.denominator], _fraction_from_plain),
    Conversion("complex", complex, lambda number: [number.real, number.imag], _complex_from_plain),
    Conversion("uuid", UUID, str, lambda data: UUID(expect(data, str))),
    Conversion("path", _HERE, _text_path, lambda data: _HERE(expect(data, str))),
    Conversion("posixpath", PurePosixPath, _text_path, lambda data: PurePosixPath(expect(data, str))),
    Conversion("windowspath", PureWindowsPath, _text_path, lambda data: PureWindowsPath(expect(data, str))),
    Conversion("range", range, lambda span: [span.start, span.stop, span.step], lambda data: range(*data)),
    Conversion("deque", deque, lambda items: [list(items), items.maxlen], _deque_from_plain),
    Conversion(
        "ordereddict", OrderedDict, lambda items: [list(pair) for pair in items.items()], lambda data: OrderedDict(data)
    ),
    Conversion("counter", Counter, dict, _counter_from_plain),
    Conversion("unset", msgspec.UnsetType, lambda _: None, lambda _: msgspec.UNSET),
)
