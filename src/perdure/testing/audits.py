"""Runs whose logs are written on the side, looked at as if they had been kept: by what was committed of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perdure.journal.events import Recorded, RunCreated
from perdure.journal.states import RunState
from perdure.store.shapes import RunDump


def as_logged(dump: RunDump, log: Sequence[Recorded]) -> RunDump:
    """Return a run with `journal="audit"` as it would be with this log: then every invariant holds that a log proves."""
    stored = replace(dump.stored, run=_logged(dump.stored.run))
    return replace(dump, stored=stored, events=tuple(_told(entry) for entry in log))


def _logged(run: RunState) -> RunState:
    return replace(run, audit=None, settings=replace(run.settings, journal="log"))


def _told(entry: Recorded) -> Recorded:
    created = entry.event
    if not isinstance(created, RunCreated):
        return entry
    return replace(entry, event=replace(created, settings=replace(created.settings, journal="log")))
