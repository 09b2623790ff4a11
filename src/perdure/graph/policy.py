"""Policies: how often, how long and where the body of a node type may run. Said once, where it is declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal, cast, get_args

import msgspec

Executor = Literal["auto", "thread", "process"]
Replay = Literal["compare", "checkpoint", "hold"]
OnItemError = Literal["fail", "skip", "collect"]
RetryOn = type[BaseException] | str
Seconds = float | timedelta


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait before the next attempt: `first`, then `factor` times longer each time, at most `cap`."""

    first: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    cap: timedelta = timedelta(seconds=60)
    jitter: bool = True


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What is allowed to the body of a node type."""

    retries: int = 0
    backoff: Backoff = Backoff()
    retry_on: tuple[RetryOn, ...] = ()
    """Classes of errors, or their names, that are worth another attempt. Empty: whatever is not known to be final."""
    timeout: timedelta | None = None
    """For one attempt; waiting does not count."""
    concurrency: int = 1
    ordered: bool = True
    pure: bool = False
    cache: bool = False
    once: bool = False
    probe: Callable[..., Any] | None = None
    executor: Executor = "auto"
    queue: str = "default"
    replay: Replay = "compare"
    """What becomes of a generator that is run again. `compare`: where it gives something else than before, its readers begin
    again. `checkpoint`: it goes on from its checkpoint, and fails if it gives something else. `hold`: nobody sees anything before
    it has ended."""
    on_item_error: OnItemError = "fail"
    """What becomes of a mapped node when an item of it has failed for good."""


def policy_from(options: Mapping[str, Any]) -> Policy:
    """Return the policy that the options of a declaration describe; those that are not given have their defaults."""
    given = dict(options)
    if "backoff" in given:
        given["backoff"] = _backoff(given["backoff"])
    if "retry_on" in given:
        given["retry_on"] = _several(given["retry_on"])
    if given.get("timeout") is not None:
        given["timeout"] = duration(given["timeout"])
    return Policy(**given)


def problems_of(options: Mapping[str, Any]) -> list[str]:
    """Return all that is wrong with the options of a declaration."""
    complete = {**msgspec.structs.asdict(Policy()), **options}
    return [*_wrong_options(complete), *_contradictions(complete)]


def duration(time: Seconds) -> timedelta:
    """Return a time that was given in seconds or as a timedelta."""
    return time if isinstance(time, timedelta) else timedelta(seconds=time)


def is_duration(time: Any, *, above: timedelta | None = None) -> bool:
    """Whether this is a time from zero, or from `above`, up, in seconds or as a timedelta."""
    if not isinstance(time, timedelta):
        if not _is_number(time):
            return False
        try:
            time = timedelta(seconds=time)
        except (OverflowError, ValueError):  # too long, or not a number
            return False
    least = timedelta(0) if above is None else above
    return bool(time > least or (above is None and time == least))


def _wrong_options(options: dict[str, Any]) -> Iterator[str]:
    for name, least in (("retries", 0), ("concurrency", 1)):
        if not _is_whole(options[name]) or options[name] < least:
            yield f"{name}={options[name]!r} is not a whole number from {least} up."
    for name in ("ordered", "pure", "cache", "once"):
        if not isinstance(options[name], bool):
            yield f"{name}={options[name]!r} is neither True nor False."
    for name, choices in (
        ("executor", get_args(Executor)),
        ("replay", get_args(Replay)),
        ("on_item_error", get_args(OnItemError)),
    ):
        if options[name] not in choices:
            yield f"{name}={options[name]!r} is none of {', '.join(map(repr, choices))}."
    if not isinstance(options["queue"], str) or not options["queue"]:
        yield f"queue={options['queue']!r} is not the name of a queue."
    if options["timeout"] is not None and not is_duration(options["timeout"], above=timedelta(0)):
        yield f"timeout={options['timeout']!r} is no time above zero, in seconds or as a timedelta."
    if options["probe"] is not None and not callable(options["probe"]):
        yield f"probe={options['probe']!r} cannot be called."
    yield from _wrong_retry_on(options["retry_on"])
    yield from _wrong_backoff(options["backoff"])


def _wrong_retry_on(retry_on: Any) -> Iterator[str]:
    for kind in _several(retry_on):
        is_error = isinstance(kind, type) and issubclass(kind, BaseException)
        if not is_error and not (isinstance(kind, str) and kind):
            yield f"retry_on={kind!r} is neither a class of errors nor the name of one."


def _wrong_backoff(backoff: Any) -> Iterator[str]:
    if not isinstance(backoff, Backoff):
        if not is_duration(backoff):
            yield f"backoff={backoff!r} is no time, in seconds or as a timedelta, and no Backoff."
        return
    if not is_duration(backoff.first) or not is_duration(backoff.cap) or backoff.cap < backoff.first:
        yield f"backoff: first={backoff.first!r} and cap={backoff.cap!r} are no two times with the longer one last."
    if not _is_number(backoff.factor) or backoff.factor < 1:
        yield f"backoff: factor={backoff.factor!r} is not a number from 1 up."


def _contradictions(options: dict[str, Any]) -> Iterator[str]:
    if options["once"] is True:
        if _is_whole(options["retries"]) and options["retries"] > 0:
            yield "once=True forbids what retries asks for: choose one."
        for name in ("pure", "cache"):
            if options[name] is True:
                yield f"once=True is for effects that must not repeat, {name}=True for bodies without any: choose one."
    elif options["probe"] is not None:
        yield "probe is asked after a lost attempt of a body that must not repeat: add once=True."


def _several(kinds: Any) -> tuple[Any, ...]:
    return tuple(cast("list[Any]", kinds)) if isinstance(kinds, list | tuple) else (kinds,)


def _backoff(backoff: Backoff | Seconds) -> Backoff:
    if isinstance(backoff, Backoff):
        return backoff
    first = duration(backoff)
    return Backoff(first=first, cap=max(first, Backoff().cap))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
