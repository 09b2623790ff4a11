"""One sign and one meaning for every status, the same wherever it is shown."""

from __future__ import annotations

from typing import Literal

from perdure.cli.terminal import Pen
from perdure.journal.states import NodeStatus, RunStatus

Meaning = Literal["good", "bad", "warning", "moving", "faint"]

NODE_MARKS: dict[NodeStatus, tuple[str, Meaning]] = {
    NodeStatus.IDLE: ("·", "faint"),
    NodeStatus.SCHEDULED: ("○", "faint"),
    NodeStatus.RUNNING: ("●", "moving"),
    NodeStatus.SUSPENDED: ("◫", "warning"),
    NodeStatus.IN_DOUBT: ("?", "warning"),
    NodeStatus.COMPLETED: ("✓", "good"),
    NodeStatus.FAILED: ("✗", "bad"),
    NodeStatus.SKIPPED: ("–", "faint"),
    NodeStatus.CANCELLED: ("⊘", "faint"),
}

RUN_MARKS: dict[RunStatus, tuple[str, Meaning]] = {
    RunStatus.CREATED: ("○", "faint"),
    RunStatus.RUNNING: ("●", "moving"),
    RunStatus.PAUSING: ("●", "moving"),
    RunStatus.PAUSED: ("◫", "warning"),
    RunStatus.SUSPENDED: ("◫", "warning"),
    RunStatus.AWAITING_INPUT: ("◫", "warning"),
    RunStatus.RECOVERING: ("●", "moving"),
    RunStatus.FAILING: ("●", "bad"),
    RunStatus.CANCELLING: ("●", "warning"),
    RunStatus.QUARANTINED: ("?", "warning"),
    RunStatus.COMPLETED: ("✓", "good"),
    RunStatus.FAILED: ("✗", "bad"),
    RunStatus.CANCELLED: ("⊘", "faint"),
}


def words_of(status: RunStatus | NodeStatus) -> str:
    """Return a status as words."""
    return status.value.replace("_", " ")


def painted(pen: Pen, text: str, meaning: Meaning) -> str:
    """Return the text in the colour of its meaning."""
    match meaning:
        case "good":
            return pen.good(text)
        case "bad":
            return pen.bad(text)
        case "warning":
            return pen.warning(text)
        case "moving":
            return pen.moving(text)
        case "faint":
            return pen.faint(text)
