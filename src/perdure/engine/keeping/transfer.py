"""A run on its way from one database to another: what of it changes because it is elsewhere, or has another name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.engine.attempts.keys import keys_begin_with
from perdure.engine.driving.goingback import GOING_BACK
from perdure.ids import CommandId, RunId
from perdure.journal import events as e
from perdure.journal.states import RunState, WaitState
from perdure.store.records import KeptCommand, Record
from perdure.store.shapes import Command, LogLine

_ANSWER = "answer/"


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is called where it came from and where it goes."""

    old_id: RunId
    new_id: RunId
    project_id: str
    versions: Mapping[int, int]
    """By the number that a version of its workflow has where it came from: that which it has where it goes."""
    arrival: str
    """What no other transfer has: see `AuditState`."""

    def moved(self, pages: Iterable[Sequence[Record]]) -> Iterator[list[Record]]:
        """Yield records as they are where the run goes."""
        for page in pages:
            yield [self._record(record) for record in page]

    def _record(self, record: Record) -> Record:
        match record:
            case RunState():
                number = self._version(record.version)
                audit = record.audit and replace(
                    record.audit, version=self._version(record.audit.version), arrival=self.arrival
                )
                return replace(record, run_id=self.new_id, project_id=self.project_id, version=number, audit=audit)
            case e.Recorded():
                event = self._event(record.event)
                return record if event is record.event else replace(record, event=event)
            case WaitState():
                return replace(record, wait_id=self._key(record.wait_id))
            case KeptCommand():
                return replace(record, command=self._command(record.command))
            case LogLine():
                return replace(record, run_id=self.new_id)
            case _:
                return record

    def _event(self, event: e.AnyEvent) -> e.AnyEvent:
        match event:
            case e.RunCreated():
                return replace(event, project_id=self.project_id, version=self._version(event.version))
            case e.VersionResolved():
                return replace(event, version=self._version(event.version))
            case e.RunRecovered(version=int(version)) | e.BranchActivated(version=int(version)):
                return replace(event, version=self._version(version))
            case e.InteractionRequested() | e.InteractionResponded():
                return replace(event, interaction_id=self._key(event.interaction_id))
            case e.TimerSet() | e.TimerFired():
                return replace(event, timer_id=self._key(event.timer_id))
            case e.SignalAwaited() | e.SignalTaken():
                return replace(event, wait_id=self._key(event.wait_id))
            case _:
                return event

    def _command(self, command: Command) -> Command:
        payload: dict[str, Any] = command.payload
        if isinstance(wait_id := payload.get("wait_id"), str):
            payload = payload | {"wait_id": self._key(wait_id)}
        if command.kind in GOING_BACK and isinstance(version := payload.get("version"), int):
            payload = payload | {"version": self._version(version)}
        name: str = command.command_id
        if name.startswith(_ANSWER):
            name = _ANSWER + self._key(name.removeprefix(_ANSWER))
        return replace(command, run_id=self.new_id, command_id=CommandId(name), payload=payload)

    def _version(self, number: int) -> int:
        return self.versions.get(number, number)

    def _key(self, key: str) -> str:
        """Return the key of a wait, which begins with the run's id."""
        old = keys_begin_with(self.old_id)
        return keys_begin_with(self.new_id) + key.removeprefix(old) if key.startswith(old) else key
