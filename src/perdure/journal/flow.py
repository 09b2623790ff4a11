"""Streams as the journal sees them: how far each has come, without the items themselves.

A batch of entries is told by its event: which positions, and a digest of what is in them. The digests form a chain, so that
the log alone proves what the rows of `run_inbox_messages` must hold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator

from msgspec.structs import replace

from perdure.ids import BranchId
from perdure.journal import events as e
from perdure.journal.states import NodeState, StreamState

Range = tuple[int, int]
"""The first position, and how many follow each other from there."""


def opened_stream(branch_id: BranchId) -> StreamState:
    """Return a stream of which nothing is recorded yet."""
    return StreamState(branch_id=branch_id)


def evolve_stream(stream: StreamState, event: e.OutboxEnqueued | e.OutboxClosed | e.ItemFailed) -> StreamState:
    """Return the stream as it stands after `event`."""
    match event:
        case e.OutboxEnqueued():
            return replace(
                stream,
                entries=stream.entries + sum(count for _, count in event.ranges),
                digest=chained(stream.digest, event.digest),
                attempts=_without(stream.attempts, event.ranges) if stream.attempts else stream.attempts,
                consumed=event.consumed or stream.consumed,
            )
        case e.ItemFailed() if event.final:
            others = {position: tried for position, tried in stream.attempts.items() if position != event.position}
            return replace(stream, attempts=others, failed=stream.failed + (not event.fails_node))
        case e.ItemFailed():
            return replace(stream, attempts={**stream.attempts, event.position: event.item_attempt})
        case e.OutboxClosed():
            return replace(stream, is_closed=True, is_unread=event.unread)


def checkpointed(stream: StreamState, event: e.NodeCheckpointed) -> StreamState:
    """Return the stream of a node that has taken a checkpoint: another attempt goes on from there."""
    return replace(stream, checkpointed=event.emitted, checkpoint_digest=stream.digest, consumed=event.consumed)


def cut_back(stream: StreamState) -> StreamState:
    """Return a stream without what was recorded after its last checkpoint: nobody has seen it."""
    return replace(stream, entries=stream.checkpointed, digest=stream.checkpoint_digest)


def batch_digest(rows: Iterable[bytes]) -> str:
    """Return the digest of the rows of one batch, in their order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(row)
    return digest.hexdigest()


def chained(before: str, batch: str) -> str:
    """Return the digest of a stream to which a batch is added."""
    return hashlib.sha256(f"{before}{batch}".encode()).hexdigest()


def ranges_of(positions: Iterable[int]) -> list[Range]:
    """Return ascending positions as ranges."""
    ranges: list[Range] = []
    first = count = 0
    for position in positions:
        if count and position == first + count:
            count += 1
            continue
        if count:
            ranges.append((first, count))
        first, count = position, 1
    if count:
        ranges.append((first, count))
    return ranges


def positions_in(ranges: Iterable[Range]) -> Iterator[int]:
    """Yield the positions in ranges."""
    for first, count in ranges:
        yield from range(first, first + count)


def bridged(ranges: Iterable[Range], positions: Container[int]) -> list[Range]:
    """Return ascending ranges as few: those between which there are only these positions become one with them."""
    found: list[Range] = []
    for first, count in ranges:
        if found and all(position in positions for position in range(sum(found[-1]), first)):
            found[-1] = (found[-1][0], first + count - found[-1][0])
        else:
            found.append((first, count))
    return found


def in_ranges(position: int, ranges: Iterable[Range]) -> bool:
    """Whether a position is in one of these ranges."""
    return any(first <= position < first + count for first, count in ranges)


def is_item_of(name: str, positions: Container[int]) -> bool:
    """Whether a step or a wait, by its name, is of one of these items."""
    position = name.partition("/")[0]
    return position.isdecimal() and int(position) in positions


def item_generation(node: NodeState, position: int) -> int:
    """Return how often an item of a node has begun, which is part of its keys: those that were chosen to begin again are other
    pieces of work than before, the others are not."""
    stream = node.stream
    if stream is None or not stream.chosen:
        return node.generation
    chosen = (generation for first, count, generation in reversed(stream.chosen) if first <= position < first + count)
    return next(chosen, stream.base)


def _without(attempts: dict[int, int], done: Iterable[Range]) -> dict[int, int]:
    ranges = list(done)
    return {position: tried for position, tried in attempts.items() if not in_ranges(position, ranges)}
