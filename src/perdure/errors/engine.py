"""The engine itself: it is not open, or what it decides or reads in a log is against the law."""

from __future__ import annotations

from perdure.errors.base import PerdureError, quoted


class EngineStopped(PerdureError):
    """The engine is not open: it is shutting down, has stopped, or was never started."""

    code = "engine_stopped"


class JournalError(PerdureError):
    """The log and the law disagree: a bug, or a database that someone else has changed."""

    code = "journal_error"


class IllegalTransition(JournalError):
    """An event does not fit the state that it meets. It was not written."""

    code = "illegal_transition"

    def __init__(self, state: object, event: object) -> None:
        super().__init__(f"{type(event).__name__} is not possible here: {event!r} after {state!r}.")
        self.state = state
        self.event = event


class JournalDamaged(JournalError):
    """The stored log is not one that perdure has written."""

    code = "journal_damaged"

    def __init__(self, run_id: str, problem: str) -> None:
        super().__init__(
            f"The log of run {run_id!r} is damaged: {problem}. `perdure verify {quoted(run_id)}` lists what is wrong."
        )
        self.run_id = run_id
