"""Checks of checkpoints: each names one place that is there, and none was saved by itself without a reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perdure.ids import Seq
from perdure.journal import events as e
from perdure.journal.checkpoints import PERIODIC, periodic_name
from perdure.journal.dump import Dump, Violation, violation
from perdure.journal.states import CheckpointState


def checkpoints_are_right(dump: Dump) -> Iterator[Violation]:
    """Yield what is wrong with checkpoints: in the table beside the log, and in the log alone."""
    logged = _logged(dump)
    yield from _add_up(dump, logged)
    yield from _name_places(dump, logged)
    yield from _have_reasons(dump)


def _add_up(dump: Dump, logged: Mapping[Seq, CheckpointState]) -> Iterator[Violation]:
    stored = {saved.event_seq: saved for saved in dump.checkpoints}
    for seq in sorted(logged.keys() | stored.keys()):
        if seq not in stored:
            yield violation("I4", f"checkpoint {logged[seq].name!r} has an event at {seq} but no row")
        elif seq not in logged:
            yield violation("I4", f"checkpoint {stored[seq].name!r} has a row but no event at {seq}")
        elif stored[seq] != logged[seq]:
            name = stored[seq].name
            yield violation("I4", f"checkpoint {name!r} is {stored[seq]} in the table, {logged[seq]} by the log")


def _name_places(dump: Dump, logged: Mapping[Seq, CheckpointState]) -> Iterator[Violation]:
    """A name means one place, which is in the log and before it was named."""
    seqs = {entry.seq for entry in dump.events}
    named: dict[str, Seq] = {}
    for saved in sorted({*logged.values(), *dump.checkpoints}, key=lambda saved: (saved.event_seq, saved.name)):
        if saved.seq not in seqs:
            yield violation("I33", f"checkpoint {saved.name!r} names event {saved.seq}, which is not in the log")
        if saved.seq >= saved.event_seq:
            yield violation(
                "I33", f"checkpoint {saved.name!r} was saved at {saved.event_seq}, before event {saved.seq}"
            )
        if named.setdefault(saved.name, saved.event_seq) != saved.event_seq:
            yield violation("I33", f"two checkpoints are called {saved.name!r}")


def _have_reasons(dump: Dump) -> Iterator[Violation]:
    """What is saved by itself is numbered, and saved only if something has happened since the last checkpoint."""
    number = 0
    is_saved = False
    for entry in dump.events:
        event = entry.event
        if isinstance(event, e.CheckpointSaved):
            if event.name.startswith(PERIODIC) != bool(event.periodic):
                yield violation("I33", f"{event.name!r} at {entry.seq} is no name for this kind of checkpoint")
            if event.periodic:
                number += 1
                if (event.periodic, event.name) != (number, periodic_name(number)):
                    yield violation("I33", f"checkpoint {event.name!r} at {entry.seq} is number {number} of its kind")
                if is_saved:
                    yield violation("I33", f"checkpoint {event.name!r} was saved, and nothing had happened")
            is_saved = True
        elif not isinstance(event, e.RunClaimed):
            is_saved = False


def _logged(dump: Dump) -> dict[Seq, CheckpointState]:
    return {
        entry.seq: CheckpointState(
            name=event.name,
            branch_id=entry.branch_id,
            seq=event.seq,
            event_seq=entry.seq,
            periodic=event.periodic,
            asked_as=event.asked_as,
            saved_at=entry.at,
        )
        for entry in dump.events
        if isinstance(event := entry.event, e.CheckpointSaved)
    }
