"""What somebody tells, gives or answers a run, and what it does not take."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.errors.base import quoted
from perdure.errors.runs import RunError


class CommandIdTaken(RunError):
    """The run was told something else under this id. Nothing was added."""

    code = "command_id_taken"

    def __init__(self, run_id: str, command_id: str, kind: str) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} was told something else under the command id {command_id!r} ({kind}). "
            "Use the same id only to repeat the same command; choose another one for this.",
        )
        self.command_id = command_id
        self.kind = kind


class InputClosed(RunError):
    """An item was sent to an input that takes no more."""

    code = "input_closed"

    def __init__(self, run_id: str, name: str) -> None:
        super().__init__(
            run_id,
            f"Input {name!r} of run {run_id!r} is closed: it was given all its items, or somebody has closed it, or the run has "
            "ended. Start another run to process more.",
        )
        self.name = name


class WaitNotFound(RunError):
    """There is no such question, or it is another run's."""

    code = "wait_not_found"

    def __init__(self, run_id: str, wait_id: str, *, owner: str | None = None, open_ids: Sequence[str] = ()) -> None:
        whose = f"It belongs to run {owner!r}." if owner is not None else "Nothing of this id waits."
        there = f" Run {run_id!r} waits for {', '.join(map(repr, open_ids))}." if open_ids else ""
        super().__init__(run_id, f"Run {run_id!r} does not wait for {wait_id!r}. {whose}{there}")
        self.wait_id = wait_id


class AnsweredAlready(RunError):
    """A question has its answer, and no other one counts."""

    code = "answered_already"

    def __init__(self, run_id: str, wait_id: str, how: str) -> None:
        super().__init__(run_id, f"Question {wait_id!r} of run {run_id!r} {how}. The first answer counts.")
        self.wait_id = wait_id


class AnswerRefused(RunError):
    """An answer is not what was asked for. The question stays open."""

    code = "answer_refused"

    def __init__(self, run_id: str, wait_id: str, problems: Sequence[str]) -> None:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(
            run_id, f"That is no answer to question {wait_id!r} of run {run_id!r}:{listed}\nIt is still open."
        )
        self.wait_id = wait_id
        self.problems = list(problems)


class NotInDoubt(RunError):
    """Somebody has said what became of a node, but nobody has to: it is not in doubt, or not any more."""

    code = "not_in_doubt"

    def __init__(self, run_id: str, node_id: str, why: str, doubtful: Sequence[str]) -> None:
        super().__init__(
            run_id,
            f"Node {node_id!r} of run {run_id!r} is not in doubt: {why}. In doubt: {', '.join(doubtful) or 'none'}. "
            f"`perdure show {quoted(run_id)}` has the details.",
        )
        self.node_id = node_id
        self.doubtful = tuple(doubtful)
