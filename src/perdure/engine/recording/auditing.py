"""What whoever drives a run with `journal="audit"` records in its row, because its log may not tell it later."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.engine.recording.driven import begins_anew
from perdure.journal.events import Recorded, RunCreated
from perdure.journal.states import AuditState


class Audit:
    """Goes on from what the run's row says, transition by transition."""

    def __init__(self, known: AuditState | None) -> None:
        self._known = known
        self._driven_before = 0 if known is None else known.driven_micros
        """How long others have driven the run, or this engine before the run was opened again."""
        self._began_at: int | None = None

    def after(self, recorded: Sequence[Recorded]) -> AuditState:
        """Return what the row has to say with a transition of these events."""
        known = self._known or _born(recorded[0])
        if recorded:
            known = msgspec.structs.replace(known, transition=recorded[0].id, driven_micros=self._driven(recorded))
        self._known = known
        return known

    def _driven(self, recorded: Sequence[Recorded]) -> int:
        """Count as `driven_seconds` does: from an owner's first event to its last one."""
        began, last = self._began_at, 0
        for entry in recorded:
            if began is None or begins_anew(entry.event):
                self._driven_before = 0 if begins_anew(entry.event) else self._driven_before
                began = entry.at
            last = max(last, entry.at)
        assert began is not None, "it has counted from the first event on"
        self._began_at = began
        return self._driven_before + max(0, last - began)


def _born(first: Recorded) -> AuditState:
    created = first.event
    assert isinstance(created, RunCreated), "a run begins with its creation"
    return AuditState(transition=first.id, birth=first.id, version=created.version, forked_from=created.forked_from)
