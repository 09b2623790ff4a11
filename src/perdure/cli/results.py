"""What became of a run, in words: its result, its error, and what can be done next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perdure.cli.exits import Exit
from perdure.cli.marks import RUN_MARKS, painted, words_of
from perdure.cli.options import Place
from perdure.cli.terminal import Paper, Pen
from perdure.cli.words import duration, error_line, fitted, plain, plain_lines, value_line, value_text
from perdure.graph.model import DEFAULT_OUTPUT
from perdure.journal.decide import IN_DOUBT
from perdure.journal.events import Encoded, ErrorClass, ErrorRecord
from perdure.journal.states import MOVING, RunState, RunStatus

TRACEBACK_LINES = 6
"""How many of the last lines of a traceback are shown."""


def exit_of(status: RunStatus) -> Exit:
    """Return the exit code for a run that is left in this status."""
    match status:
        case RunStatus.COMPLETED:
            return Exit.DONE
        case RunStatus.FAILED:
            return Exit.FAILED
        case RunStatus.CANCELLED:
            return Exit.CANCELLED
        case _:
            return Exit.WAITING


def verdict(run: RunState, pen: Pen) -> str:
    """Return how the run stands, as a headline."""
    mark, meaning = RUN_MARKS[run.status]
    told = f"{mark} {words_of(run.status)}"
    if run.ended_at is not None and run.started_at is not None:
        told += f" {'in' if run.status is RunStatus.COMPLETED else 'after'} {duration(run.ended_at - run.started_at)}"
    if run.status not in (RunStatus.COMPLETED, RunStatus.FAILED) and run.reason:
        told += f": {plain(run.reason)}"
    return painted(pen, told, meaning)


def outcome(run: RunState, place: Place, paper: Paper) -> Iterator[str]:
    """Yield what a person wants to read when a run has ended or rests: the result, or why there is none."""
    yield verdict(run, paper.pen)
    if run.status is RunStatus.COMPLETED:
        yield from result(run.outputs or {})
    if run.error is not None:
        yield from trouble(run.failed_node, run.error, paper)
    yield from next_steps(run, place, paper.pen)


def result(outputs: Mapping[str, Encoded]) -> Iterator[str]:
    """Yield the outputs in full. One that has no name of its own stands alone, and is not shown if it is nothing."""
    if set(outputs) == {DEFAULT_OUTPUT} and bytes(outputs[DEFAULT_OUTPUT]) == b"null":
        return
    for name, value in outputs.items():
        text = value_text(value)
        yield text if name == DEFAULT_OUTPUT and len(outputs) == 1 else f"{plain(name)}: {text}"


def short_values(values: Mapping[str, Encoded], width: int) -> Iterator[str]:
    """Yield `name = value` for each, cut to the width."""
    for name, value in values.items():
        yield fitted(f"{plain(name)} = {value_line(value)}", width)


def trouble(node_id: str | None, error: ErrorRecord, paper: Paper) -> Iterator[str]:
    """Yield an error: where, what kind, what it says, and the end of its traceback."""
    pen = paper.pen
    where = f"{plain(node_id)}: " if node_id else ""
    kind = "" if error.error_class is ErrorClass.UNKNOWN else pen.faint(f" ({error.error_class.value})")
    yield f"{pen.bad('✗')} {pen.strong(where)}{error_line(error)}{kind}"
    # The frames alone: what follows them has been said.
    frames = [line for line in plain_lines(error.traceback).splitlines() if line.startswith(" ")]
    for line in frames[-TRACEBACK_LINES:]:
        yield pen.faint(fitted(f"  {line}", paper.width))


def next_steps(run: RunState, place: Place, pen: Pen, *, is_driven: bool = False) -> Iterator[str]:
    """Yield what can be done next, if anything."""
    resume = place.command("resume", run.run_id)
    match run.status:
        case RunStatus.COMPLETED | RunStatus.CANCELLED:
            return
        case RunStatus.FAILED:
            yield _step(pen, "what happened", place.command("events", run.run_id))
            yield _step(pen, "what its nodes logged", place.command("logs", run.run_id))
        case RunStatus.QUARANTINED:
            yield _step(pen, "what happened", place.command("events", run.run_id))
            yield _step(pen, "try again", resume)
        case RunStatus.SUSPENDED if run.reason.startswith(IN_DOUBT):
            node = run.reason.removeprefix(IN_DOUBT).partition(",")[0]
            yield _step(
                pen,
                "say what became of it",
                place.command("resolve", run.run_id, node, "done") + " (or retry, or fail)",
            )
            yield _step(pen, "then continue", resume)
        case status if status in MOVING and not is_driven:
            yield _step(pen, "continue", resume)
        case status if status in MOVING:
            yield _step(pen, "follow", place.command("events", run.run_id, "--follow"))
        case _:
            yield _step(pen, "continue", resume)
            yield _step(pen, "give up", place.command("cancel", run.run_id))


def _step(pen: Pen, why: str, command: str) -> str:
    return f"{pen.faint(f'{why}:')} {command}"
