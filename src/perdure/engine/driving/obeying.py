"""Wishes from outside: what follows from a command, or from somebody's word about an attempt in doubt."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from perdure.engine.attempts.resolution import Resolution
from perdure.engine.driving.bodies import STOPPING
from perdure.engine.driving.checkpointing import obey_checkpoint
from perdure.engine.driving.goingback import obey_going_back
from perdure.engine.driving.sending import obey_sent
from perdure.engine.driving.waiting import Answer, Signal
from perdure.ids import NodeId
from perdure.journal.states import TERMINAL, WAITING, NodeStatus, RunStatus, WaitStatus
from perdure.store.shapes import Command

if TYPE_CHECKING:
    from perdure.engine.driving.driver import Driver

log = logging.getLogger("perdure.driver")


def obey(command: Command, driver: Driver, *, at: int) -> bool:
    """Decide what follows from a command. False if nothing does."""
    status = driver.projection.run.status
    reason = str(command.payload.get("reason", ""))
    match command.kind:
        case "cancel" if status not in TERMINAL and status not in STOPPING:
            driver.decider.cancel(reason=reason, at=at)
            driver.stopping.when_durable(STOPPING[RunStatus.CANCELLING])
        case "send" | "close":
            return obey_sent(command, driver)
        case "resolve":
            return _obey_resolution(command, driver, at)
        case "answer":
            return _obey_answer(command, driver, at)
        case "signal":
            return _obey_signal(command, driver, at)
        case "checkpoint":
            return obey_checkpoint(command, driver, at=at)
        case "retry" | "jump" | "restore":
            return obey_going_back(command, driver, at=at)
        case "pause" if status is RunStatus.RUNNING or status in WAITING:
            driver.decider.pause(reason=reason, at=at)
            grace = command.payload.get("grace_seconds")
            driver.stopping.pause(driver.projection.run.settings.grace_seconds if grace is None else float(grace))
        case "resume" if status in (RunStatus.QUARANTINED, RunStatus.SUSPENDED, RunStatus.PAUSED):
            driver.decider.resume(reason=reason, at=at)
        case _:
            return False
    return True


def _obey_answer(command: Command, driver: Driver, at: int) -> bool:
    answer = msgspec.convert(command.payload, Answer)
    wait = driver.projection.waits.get(answer.wait_id)
    if wait is None or wait.status is not WaitStatus.OPEN or driver.projection.run.status in STOPPING:
        return False
    driver.use_blobs(answer.blobs)
    value = None if answer.value is None else msgspec.Raw(answer.value.encode())
    driver.decider.answered(wait, value, by=answer.by, at=at)
    return True


def _obey_signal(command: Command, driver: Driver, at: int) -> bool:
    signal = msgspec.convert(command.payload, Signal)
    driver.use_blobs(signal.blobs)
    value = msgspec.Raw(signal.value.encode())
    driver.decider.signal_received(signal.signal_id, signal.name, value, sent_at=command.created_at, at=at)
    return True


def _obey_resolution(command: Command, driver: Driver, at: int) -> bool:
    try:
        wish = msgspec.convert(command.payload, Resolution)
    except msgspec.ValidationError as error:
        log.warning("command_unreadable", extra={"run_id": driver.run_id, "problem": str(error)})
        return False
    return resolve(wish, driver, at=at)


def resolve(wish: Resolution, driver: Driver, *, at: int) -> bool:
    """Decide what follows from a probe's or a person's word. False if it is about nothing that is in doubt."""
    projection, decider = driver.projection, driver.decider
    node = projection.node(NodeId(wish.node_id))
    if node.status is not NodeStatus.IN_DOUBT or wish.attempt not in (None, node.attempt):
        return False
    driver.use_blobs(wish.blobs)
    status = projection.run.status
    # Only a run that moves can fail; one that is quarantined takes note of anything else and stays so.
    if status is RunStatus.SUSPENDED or (wish.resolution == "fail" and status is not RunStatus.RUNNING):
        decider.resume(reason="resolved", at=at)
    was_running = projection.run.status is RunStatus.RUNNING
    decider.resolve(node.node_id, wish.event_for(node), at=at)
    driver.stopping.if_failing(was_running)
    return True
