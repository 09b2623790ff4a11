"""What taking a run over means, given how it is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from perdure.engine.attempts.resolution import Resolution
from perdure.engine.driving.catalogue import Prepared
from perdure.engine.driving.checkpointing import CHECKPOINT
from perdure.engine.driving.driver import Driver
from perdure.engine.driving.goingback import GOING_BACK
from perdure.engine.driving.obeying import resolve
from perdure.engine.driving.reopening import Reopening
from perdure.engine.driving.returning import Returning
from perdure.engine.driving.waiting import answer_command, answer_in_time, is_late
from perdure.engine.recording.machinery import Machinery
from perdure.errors import CommandIdTaken
from perdure.ids import CommandId, EngineId, Epoch
from perdure.journal.projection import Projection
from perdure.journal.states import MOVING, TERMINAL, WAITING, RunState, RunStatus
from perdure.journal.waiting import Waits
from perdure.store.base import Store
from perdure.store.shapes import CLOSE, SEND, Command, EngineRow, ItemRange, StoredRun
from perdure.store.transitions import Claim

NEAR_MICROS = 60_000_000
"""What is due so soon may come while a run is taken up."""


async def owner_row(store: Store, owner: EngineId) -> EngineRow | None:
    """Return what is known of an engine that owns a run."""
    return next((row for row in await store.list_engines() if row.engine_id == owner), None)


def is_lost(stored: StoredRun) -> bool:
    """Whether the run's owner has left it without a word."""
    return stored.owner is not None and stored.run.status in MOVING


def is_due(run: RunState, at: int) -> bool:
    """Whether the time has come for which the run rests."""
    return run.status in WAITING and run.wake_at is not None and run.wake_at <= at


def is_woken(stored: StoredRun, at: int) -> bool:
    """Whether something is there for a run that rests."""
    return is_due(stored.run, at) or is_addressed(stored)


def is_addressed(stored: StoredRun) -> bool:
    """Whether somebody has told a run that rests something that moves it. Items for its inputs do, unless it was stopped."""
    if stored.run.status in TERMINAL:
        return is_reopened(stored)
    hears_items = stored.run.status in WAITING
    return any(hears_items or command.kind not in (SEND, CLOSE) for command in stored.commands)


def is_reopened(stored: StoredRun) -> bool:
    """Whether somebody wants a run to go back, also one that has ended."""
    return any(command.kind in GOING_BACK for command in stored.commands)


def is_only_ending(stored: StoredRun) -> bool:
    """Whether no body of the run will run any more."""
    if is_reopened(stored):
        return False
    is_ending = stored.run.status in TERMINAL or stored.run.status in (RunStatus.CANCELLING, RunStatus.FAILING)
    return is_ending or any(command.kind == "cancel" for command in stored.commands)


def is_only_named(stored: StoredRun, at: int) -> bool:
    """Whether a run that rests goes on resting, because all that it was told is to save checkpoints. Not if its time is near:
    it could come meanwhile."""
    is_asleep = stored.run.status not in MOVING and not is_due(stored.run, at + NEAR_MICROS)
    return is_asleep and bool(stored.commands) and all(command.kind == CHECKPOINT for command in stored.commands)


def needs_no_code(stored: StoredRun, at: int) -> bool:
    """Whether no body of the run will run while it is driven, so that its node types are not needed."""
    return is_only_ending(stored) or is_only_named(stored, at)


def in_order(stored: StoredRun, *, lacks_types: bool) -> Sequence[Command]:
    """Return the commands in the order in which they apply. One who cannot run the bodies ends the run before all else."""
    return sorted(stored.commands, key=lambda command: command.kind != "cancel") if lacks_types else stored.commands


async def answered_in_time(stored: StoredRun, store: Store, *, at: int) -> StoredRun:
    """Have questions answered whose time is over, and return the run as it is stored then."""
    late = [wait for wait in stored.waits if is_late(wait, at)]
    for wait in late:
        with suppress(CommandIdTaken):  # somebody was faster
            await store.add_command(answer_command(stored.run.run_id, answer_in_time(wait), at=at))
    return (await store.load_run(stored.run.run_id) or stored) if late else stored


def take_up(
    stored: StoredRun,
    prepared: Prepared,
    machinery: Machinery,
    claim: Claim,
    answers: Sequence[Resolution],
    *,
    on_gone: Callable[[Driver], None],
    at: int,
    ranges: Sequence[ItemRange] = (),
    returnings: Mapping[CommandId, Returning | None] | None = None,
    reopenings: Mapping[CommandId, Reopening | None] | None = None,
) -> Driver:
    """Decide the transition with which the run becomes the engine's. `answers` are what probes say of attempts in doubt."""
    run = stored.run
    steps = {(step.node_id, step.name, step.occurrence): step.result for step in stored.steps}
    driver = Driver(
        projection=Projection(
            run, stored.nodes, steps, Waits(stored.waits, stored.signals), stored.given, stored.last_branch
        ),
        program=prepared.program,
        machinery=machinery,
        base_seq=run.last_seq,
        claim=claim,
        seen_epoch=run.epoch,
        on_gone=on_gone,
        ranges=ranges,
    )
    if prepared.missing:
        driver.decider.ready.clear()  # it could not start them
    epoch = Epoch(run.epoch + 1)
    driver.decider.claim(claim.engine_id, epoch, previous=stored.owner, lost=is_lost(stored), at=at)
    if driver.projection.run.status is RunStatus.CREATED:
        driver.decider.start(at=at)
    driver.returnings, driver.reopenings = returnings or {}, reopenings or {}
    # A run that goes back does so as it is, and is woken again if it cannot.
    if is_due(run, at) and not (returnings or reopenings):
        driver.decider.resume(reason="its time has come", at=at)
    told = {command.payload.get("node_id") for command in stored.commands if command.kind == "resolve"}
    for answer in answers:
        # What a person has said comes first, and what is quarantined waits for one.
        if answer.node_id not in told and driver.projection.run.status is not RunStatus.QUARANTINED:
            resolve(answer, driver, at=at)
    return driver
