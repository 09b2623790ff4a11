"""Collecting blobs that nothing refers to.

What runs refer to is in the table `blobs`, written in the very transition that refers to it. A blob is put before that, so
one that is young may be somebody's who has not come so far. Hence the order: list, leave out what is young, ask which of the
rest are in use, and delete those that are not, unless they were put again meanwhile.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec

from perdure.clock import Clock
from perdure.store.base import Store
from perdure.store.blobs import BlobStore, StoredBlob

DEFAULT_GRACE: Final = timedelta(days=7)
"""Longer than any lease, and than nearly every attempt: what an attempt has written is in use only when it ends."""
PAGE_BLOBS: Final = 500


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """What a collection has found, and taken or would take."""

    place: str
    is_dry_run: bool
    used: int = 0
    """Blobs that runs refer to."""
    young: int = 0
    """Blobs that nothing refers to, and that were put too recently."""
    collected: int = 0
    collected_bytes: int = 0


async def collect_blobs(
    store: Store, blobs: BlobStore, *, older_than: timedelta, dry_run: bool, clock: Clock
) -> Collection:
    """Delete blobs that no run of the database refers to and that were last put longer ago than this.

    Raises ValueError if that is less than what the place needs.
    """
    if older_than < blobs.least_grace:
        raise ValueError(
            f"older_than={older_than} is too short: what is written in {blobs.place} is safe if blobs are collected after "
            f"{blobs.least_grace} at the earliest."
        )
    put_before = clock.now_micros() - older_than // timedelta(microseconds=1)
    found = Collection(place=blobs.place, is_dry_run=dry_run)
    page: list[StoredBlob] = []
    async for blob in blobs.list():
        page.append(blob)
        if len(page) == PAGE_BLOBS:
            found, page = await _collect(page, store, blobs, put_before, found), []
    return await _collect(page, store, blobs, put_before, found)


async def _collect(
    page: list[StoredBlob], store: Store, blobs: BlobStore, put_before: int, so_far: Collection
) -> Collection:
    used = await store.used_blobs([blob.digest for blob in page])
    collected: list[StoredBlob] = []
    for blob in page:
        if blob.digest in used or blob.stored_at >= put_before:
            continue
        if so_far.is_dry_run or await blobs.delete_if_older(blob.digest, put_before):
            collected.append(blob)
    return msgspec.structs.replace(
        so_far,
        used=so_far.used + len(used),
        young=so_far.young + len(page) - len(used) - len(collected),
        collected=so_far.collected + len(collected),
        collected_bytes=so_far.collected_bytes + sum(blob.size for blob in collected),
    )
