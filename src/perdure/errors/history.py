"""A run's history: the places in it that have names, and going back to one."""

from __future__ import annotations

from perdure.errors.base import quoted
from perdure.errors.runs import RunError


class CheckpointExists(RunError):
    """The run has a checkpoint of this name, or was asked for one. A name means one place, for good."""

    code = "checkpoint_exists"

    def __init__(self, run_id: str, name: str, seq: int | None) -> None:
        there = "somebody has asked for one, and it is to be saved" if seq is None else f"it is at event {seq}"
        super().__init__(
            run_id,
            f"Run {run_id!r} has a checkpoint {name!r} already: {there}. A name stays where it is. Choose another one; "
            f"`perdure checkpoint {quoted(run_id)}` lists those that there are.",
        )
        self.name = name
        self.seq = seq


class CheckpointPending(RunError):
    """A checkpoint was asked for, durably, and nobody has saved it yet."""

    code = "checkpoint_pending"

    def __init__(self, run_id: str, name: str) -> None:
        super().__init__(
            run_id,
            f"Checkpoint {name!r} of run {run_id!r} was asked for and is not saved yet: nobody drives the run, or whoever does "
            "is busy. The wish is kept, and whoever drives the run next saves it first. "
            f"`perdure checkpoint {quoted(run_id)}` shows it then.",
        )
        self.name = name


class CannotGoBack(RunError):
    """A run cannot be retried, or cannot go back to a node, as somebody wants it to."""

    code = "cannot_go_back"

    def __init__(self, run_id: str, why: str) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} cannot go back so: {why}. Nothing has changed. `perdure show {quoted(run_id)}` has the details.",
        )
        self.why = why


class PlaceNotFound(RunError):
    """A run was to be seen as it was somewhere in its history, and that place is not there."""

    code = "place_not_found"

    def __init__(self, run_id: str, what: str) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} has {what}. `perdure events {quoted(run_id)}` shows its log, "
            f"`perdure checkpoint {quoted(run_id)}` the names in it and "
            f"`perdure branches {quoted(run_id)}` its lines of history.",
        )


class LogNotWhole(RunError):
    """What was asked of a run needs all of its log, and its log is written on the side: it may have gaps."""

    code = "log_not_whole"

    def __init__(self, run_id: str, what: str) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} has journal='audit': what is recorded of it is in its tables alone, and its log may "
            f"have gaps. So {what}. Nothing has changed. `perdure show {quoted(run_id)}` shows how it stands; start runs that "
            "need their history with journal='log'.",
        )
        self.what = what


class GoingBackPending(RunError):
    """A run was asked to go back, durably, and nobody has done it yet."""

    code = "going_back_pending"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} was asked to go back, and has not yet: nobody drives it who has its code, or whoever does is busy. "
            f"The wish is kept, and whoever takes the run up next fulfils it. `perdure branches {quoted(run_id)}` shows it then.",
        )
