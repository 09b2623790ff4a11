"""What bodies have really done, kept outside of the database: the witness against which the journal is checked.

A body says with `effect(ctx)` that it has done something that cannot be undone. That line is in a file before the body goes on,
so that it survives whatever becomes of the process, of the database and of the run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec

from perdure.ids import NodeId, RunId
from perdure.journal import events as e
from perdure.journal.flow import in_ranges
from perdure.testing.process import require_alive


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a body has done."""

    node_id: NodeId
    attempt: int
    key: str
    part: str = ""
    """Which one, of a body that does several things."""
    item: int | None = None
    """For which item, of a node that is called once per item."""


class Ledger:
    """The effects of runs, a file for each run. With `sync`, a line is on the disk before the body goes on."""

    def __init__(self, folder: Path, *, sync: bool = True) -> None:
        self._folder = folder
        self._sync = sync

    @contextmanager
    def open(self) -> Generator[None]:
        """Make this the ledger of every body that is run meanwhile, in this context and those that come from it."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def write(self, run_id: str, effect: Effect) -> None:
        """Add a line. Lines of several processes do not mix."""
        descriptor = os.open(self._path(run_id), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(effect) + b"\n")
            if self._sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def effects(self, run_id: RunId) -> list[Effect]:
        """Return what was done for a run, in order."""
        path = self._path(run_id)
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [msgspec.json.decode(line, type=Effect) for line in lines]

    def _path(self, run_id: str) -> Path:
        return self._folder / run_id


_current: ContextVar[Ledger | None] = ContextVar("perdure_testing_ledger", default=None)

LEDGER_VARIABLE = "PERDURE_TESTING_LEDGER"
"""Names the ledger's folder for bodies in other processes."""


def effect(ctx: Any, part: str = "") -> None:
    """Say, in a body, that it does something that cannot be undone. Without a ledger nobody listens."""
    require_alive()
    ledger = _current.get() or _from_environment()
    if ledger is not None:
        done = Effect(
            node_id=NodeId(ctx.node_id), attempt=ctx.attempt, key=ctx.idempotency_key, part=part, item=ctx.item
        )
        ledger.write(ctx.run_id, done)


def check_effects(
    effects: Sequence[Effect],
    log: Sequence[e.Recorded],
    *,
    certain: Collection[str],
    possible: Collection[str],
) -> Iterator[str]:
    """Yield what is wrong (I27): nodes that should have had effects and had none, and effects nobody has recorded."""
    nodes = {done.node_id for done in effects}
    for missing in sorted(set(certain) - nodes):
        yield f"node {missing!r} had no effect"
    for surplus in sorted(nodes - set(certain) - set(possible)):
        yield f"node {surplus!r} should not have run"
    yield from _shared_keys(effects, log)
    of_items = [done for done in effects if done.item is not None]
    yield from _repeated_items(of_items, log)
    effects = [done for done in effects if done.item is None]
    begun = Counter(
        (entry.event.node_id, entry.event.attempt)
        for entry in log
        if isinstance(entry.event, e.NodeStarted | e.NodeResumed)
    )
    for done, count in Counter(effects).items():
        if count > max(1, begun[done.node_id, done.attempt]):
            yield f"attempt {done.attempt} of {done.node_id!r} ran {count} times"
    for node_id in {done.node_id for done in effects}:
        times = sum(count for (begun_id, _), count in begun.items() if begun_id == node_id)
        yield from _repeated_parts(node_id, [done for done in effects if done.node_id == node_id], times)
    for done in effects:
        if (done.node_id, done.attempt) not in begun:
            yield f"attempt {done.attempt} of {done.node_id!r} had an effect, and the log does not know that it started"


def _shared_keys(effects: Sequence[Effect], log: Sequence[e.Recorded]) -> Iterator[str]:
    """A piece of work has one key, and another one each time it begins again on a branch."""
    branches = [entry.event for entry in log if isinstance(entry.event, e.BranchCreated)]
    begun_again = Counter(node_id for branch in branches for node_id in branch.dropped if not branch.restored)
    restored = sum(branch.restored for branch in branches)  # whatever was not done then may be begun again
    keys: dict[tuple[NodeId, int | None], set[str]] = {}
    for done in effects:
        keys.setdefault((done.node_id, done.item), set()).add(done.key)
    for (node_id, item), found in keys.items():
        chosen = sum(_is_chosen(branch, node_id, item) for branch in branches)
        if len(found) > 1 + begun_again[node_id] + chosen + restored:
            where = f"node {node_id!r}" if item is None else f"item {item} of {node_id!r}"
            yield f"{where} was given several idempotency keys: {sorted(found)}"
    owners = Counter(key for found in keys.values() for key in found)
    for key, count in owners.items():
        if count > 1:
            yield f"the idempotency key {key!r} was given to {count} pieces of work"


def _is_chosen(branch: e.BranchCreated, node_id: NodeId, item: int | None) -> bool:
    """Whether an item begins again on a branch, and its node does not."""
    kept = branch.items.get(node_id)
    return kept is not None and item is not None and in_ranges(item, kept.chosen)


def _repeated_items(effects: Sequence[Effect], log: Sequence[e.Recorded]) -> Iterator[str]:
    """An item is tried once, once more for each of its failures, and at most once more for each time its node was lost."""
    begun = (entry.event for entry in log if isinstance(entry.event, e.NodeStarted | e.NodeResumed))
    started = Counter(event.node_id for event in begun)
    failed = Counter(
        (entry.event.node_id, entry.event.position) for entry in log if isinstance(entry.event, e.ItemFailed)
    )
    tries = Counter((done.node_id, done.item) for done in effects)
    for (node_id, item), count in tries.items():
        if count > started[node_id] + failed[node_id, item or 0]:
            yield f"item {item} of {node_id!r} ran {count} times, its node {started[node_id]} times"


def _repeated_parts(node_id: NodeId, effects: Sequence[Effect], attempts: int) -> Iterator[str]:
    """A body that records each part when it is done repeats at most the one in which it has ended an earlier time."""
    parts = Counter(done.part for done in effects if done.part)
    repeated = parts.total() - len(parts)
    if repeated > attempts - 1:
        yield f"node {node_id!r} repeated {repeated} parts in {attempts} attempts"


def _from_environment() -> Ledger | None:
    folder = os.environ.get(LEDGER_VARIABLE)
    return Ledger(Path(folder)) if folder else None
