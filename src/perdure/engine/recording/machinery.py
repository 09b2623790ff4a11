"""What every driver of an engine shares: the door, the places for bodies, time, values and the news."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from perdure.clock import Clock
from perdure.dispatch.base import Dispatch
from perdure.engine.attempts.slots import Slots
from perdure.engine.attempts.values import Decode, Values
from perdure.engine.attempts.warmth import Warmth
from perdure.engine.recording.committer import Committer
from perdure.engine.recording.hub import Hub
from perdure.engine.recording.rounds import Rounds
from perdure.ids import Chance, RunId
from perdure.journal.events import Encoded
from perdure.store.base import Store

StartRun = Callable[[RunId, str, Mapping[str, Encoded], Decode], Awaitable[None]]
"""Starts a run, given its id, the name of its workflow and its inputs, unless it was started before. Durable when it returns."""


@dataclass(frozen=True, kw_only=True)
class Machinery:
    """Shared by the drivers of one engine, owned by the engine."""

    store: Store
    committer: Committer
    slots: Slots
    dispatch: Dispatch
    clock: Clock
    values: Values
    hub: Hub
    secrets: Callable[[str], str]
    may_start: Callable[[], bool]
    """False while the engine cannot be sure of its lease, or drains: nothing is started then."""
    chance: Chance
    start_run: StartRun
    hibernate_after: float = 5.0
    """How many seconds a body that waits stays in memory."""
    warmth: Warmth = field(default_factory=Warmth)
    is_crowded: Callable[[], bool] = lambda: False
    """Whether there are so many runs in memory that no body that waits stays there. As it is if others wait for places."""
    rounds: Rounds = field(default_factory=Rounds)
