"""Runs: which one is meant, what it is started with, how it stands and how it has ended."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.errors.base import PerdureError, listed, quoted


class RunError(PerdureError):
    """Something about one run."""

    code = "run_error"

    def __init__(self, run_id: str, message: str) -> None:
        super().__init__(message)
        self.run_id = run_id


class RunNotFound(RunError):
    """There is no run with this id in the store."""

    code = "run_not_found"

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, f"There is no run {run_id!r} in this store. `perdure list` shows the runs it holds.")


class RunIdAmbiguous(RunError):
    """The beginning of a run's id was given, and several runs have it."""

    code = "run_id_ambiguous"

    def __init__(self, prefix: str, candidates: Sequence[str]) -> None:
        super().__init__(
            prefix, f"Several runs have ids that begin with {prefix!r}:{listed(candidates, 'Give more of it.')}"
        )
        self.candidates = tuple(candidates)


class RunIdTaken(RunError):
    """A run with this id exists and was started with other inputs, or from another workflow."""

    code = "run_id_taken"

    def __init__(self, run_id: str, differing: Sequence[str]) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} exists and was started differently ({', '.join(differing)}). "
            f"Start it the same way to get that run, go on with it as it was started (`perdure resume {quoted(run_id)}`), "
            "or choose another run_id.",
        )
        self.differing = tuple(differing)


class RunNotEnded(RunError):
    """The run was asked for something that only a run can do that has ended."""

    code = "run_not_ended"

    def __init__(self, run_id: str, status: str, what: str) -> None:
        super().__init__(
            run_id, f"Run {run_id!r} has not ended: it is {status}. {what} Cancel it first, or wait for it."
        )
        self.status = status


class ValuesDeleted(RunError):
    """The values of the run were deleted: what happened is known, with what is not."""

    code = "values_deleted"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            run_id,
            f"The values of run {run_id!r} were deleted. `perdure events {quoted(run_id)}` shows what has happened to it. "
            "Its id stays taken: to run the workflow again, choose another.",
        )


class WrongInputs(PerdureError):
    """What was given does not fit the workflow's inputs. Nothing was started, sent or changed."""

    code = "wrong_inputs"

    def __init__(self, workflow: str, problems: Sequence[str], advice: str = "", *, nothing: str = "started") -> None:
        end = f"{advice} Nothing was {nothing}.".lstrip()
        told = f" {problems[0]}. {end}" if len(problems) == 1 else listed(problems, end)
        super().__init__(f"The inputs do not fit workflow {workflow!r}:{told}")
        self.workflow = workflow
        self.problems = tuple(problems)


class RunFailed(RunError):
    """The run ended in failure."""

    code = "run_failed"

    def __init__(self, run_id: str, node_id: str | None, error_type: str, message: str, traceback: str = "") -> None:
        where = f" at node {node_id!r}" if node_id else ""
        super().__init__(
            run_id,
            f"Run {run_id!r} failed{where}: {error_type}: {message.rstrip('.')}. "
            f"`perdure show {quoted(run_id)}` has the details.",
        )
        if traceback:
            self.add_note(traceback.rstrip())
        self.node_id = node_id
        self.error_type = error_type
        self.message = message
        self.traceback = traceback


class RunCancelled(RunError):
    """The run was cancelled."""

    code = "run_cancelled"

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, f"Run {run_id!r} was cancelled" + (f": {reason}." if reason else "."))
        self.reason = reason


class RunResting(RunError):
    """The run has no result: it rests until something from outside arrives."""

    code = "run_resting"

    def __init__(self, run_id: str, status: str, reason: str) -> None:
        first = (
            f"`perdure resolve {quoted(run_id)} NODE done|retry|fail` says what became of it; then "
            if "in doubt" in reason
            else ""
        )
        super().__init__(
            run_id,
            f"Run {run_id!r} is {status}" + (f": {reason}" if reason else "") + ". "
            f"{first}`perdure resume {quoted(run_id)}` continues it; `perdure show {quoted(run_id)}` has the details.",
        )
        self.status = status
        self.reason = reason


class RunEnded(RunError):
    """The run was asked for something that only a run can do that has not ended."""

    code = "run_ended"

    def __init__(self, run_id: str, status: str, what: str) -> None:
        super().__init__(
            run_id, f"Run {run_id!r} has ended: it is {status}. {what} `perdure show {quoted(run_id)}` has the details."
        )
        self.status = status
