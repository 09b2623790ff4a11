"""Patience with the store: what it cannot do at the moment is tried again for a while before anything is given up."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from perdure.engine.recording.machinery import Machinery
from perdure.errors import BlobDamaged, BlobMissing, StoreDamaged, StoreError, StoreReadOnly

T = TypeVar("T")

FIRST_RETRY_SECONDS: Final = 0.05
LAST_RETRY_SECONDS: Final = 1.0

log = logging.getLogger("perdure.patience")


async def patiently(
    work: Callable[[], Awaitable[T]], machinery: Machinery, on_given_up: Callable[[StoreError], None]
) -> T:
    """Do something with blobs or rows, again and again while they are out of reach or have no room.

    When patience ends, `on_given_up` hears of it first: the run is dropped from memory as it is when the database fails,
    because no body is to blame.
    """
    try:
        return await work()
    except StoreError as error:
        return await _again(work, error, machinery, on_given_up)


async def _again(
    work: Callable[[], Awaitable[T]],
    error: StoreError,
    machinery: Machinery,
    on_given_up: Callable[[StoreError], None],
) -> T:
    clock = machinery.clock
    deadline = clock.monotonic() + machinery.values.patience_seconds
    delay = FIRST_RETRY_SECONDS
    while not isinstance(error, BlobMissing | BlobDamaged):
        if isinstance(error, StoreReadOnly | StoreDamaged) or clock.monotonic() >= deadline:
            on_given_up(error)
            break
        log.warning("store_not_ready", extra={"error": str(error), "retry_in_seconds": delay})
        await clock.sleep(delay)
        delay = min(delay * 2, LAST_RETRY_SECONDS)
        try:
            return await work()
        except StoreError as another:
            error = another
    raise error
