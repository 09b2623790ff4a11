"""What became of a run, in words: its result, its error, and what can be done next."""

from __future__ import annotations

import asyncio
import concurrent
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

import perdure
from perdure.cli.exits import Exit
from perdure.cli.marks import RUN_MARKS, painted, words_of
from perdure.cli.options import Place
from perdure.cli.terminal import Paper, Pen
from perdure.cli.waits import NOTHING, Awaited, how_to_end
from perdure.cli.words import (
    duration,
    error_line,
    fitted,
    is_beyond_text,
    plain,
    plain_lines,
    readable,
    value_line,
    value_text,
)
from perdure.graph.model import DEFAULT_OUTPUT
from perdure.journal.decide import RUN_TIMEOUT
from perdure.journal.events import Encoded, ErrorClass, ErrorRecord
from perdure.journal.resting import IN_DOUBT
from perdure.journal.states import MOVING, RunState, RunStatus
from perdure.store.codecs import blob_refs, content_refs

TRACEBACK_LINES = 9
"""How many of the last lines of a traceback are shown."""
MEMBER_LINES = 24
"""How much is shown of the members of a group of exceptions."""
KINDS = {
    ErrorClass.TRANSIENT: "transient: another try may help",
    ErrorClass.RESOURCE: "resource: too little memory, or the like",
    ErrorClass.CONFIGURATION: "configuration: something is missing on this machine",
    ErrorClass.INPUT: "input: the node cannot use what it was given",
    ErrorClass.BUG: "bug: in the code of the node",
}
"""What the class of an error means. Of an unknown one there is nothing to say."""
MOST_COMMAND_CHARS = 600
"""A longer command is not one that a person copies."""

_FRAME = '  File "'
_MEMBERS = "\n  +-+----"
"""Where the members of a group of exceptions begin."""
_CHAINED = re.compile(
    r"^(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):$",
    re.MULTILINE,
)
"""What stands between the traceback of an exception and that of what led to it, which comes first."""
_BARS = re.compile(r"^(?: *[|+] ?)+")
"""What stands before each line of a group's members."""
_MACHINERY = tuple(f"{Path(file).parent}{os.sep}" for file in (perdure.__file__, asyncio.__file__, concurrent.__file__))


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


def outcome(run: RunState, place: Place, paper: Paper, awaited: Awaited) -> Iterator[str]:
    """Yield what a person wants to read when a run has ended or rests: the result, or why there is none."""
    yield verdict(run, paper.pen)
    if run.status is RunStatus.COMPLETED:
        yield from result(run.outputs or {})
    if run.error is not None:
        yield from trouble(run.failed_node, run.error, paper)
    yield from next_steps(run, place, paper.pen, awaited)


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
    kind = f" ({KINDS[error.error_class]})" if error.error_class in KINDS else ""
    yield f"{pen.bad('✗')} {pen.strong(where)}{error_line(error)}{pen.faint(kind)}"
    for line in _users_lines(error.traceback):
        yield pen.faint(fitted(f"  {line}", paper.width))


def _users_lines(traceback: str) -> list[str]:
    """Return the last frames of a traceback, whole ones, without those of perdure itself. What was raised is said already; of a
    group, what is in it comes after them."""
    traceback = plain_lines(traceback)
    group, _, members = _CHAINED.split(traceback)[-1].partition(_MEMBERS)
    if not members:  # and if what led to it was a group, that is not what was raised
        return _last_frames(traceback)
    # How groups are drawn: each line of theirs stands behind a bar.
    frames = _last_frames("\n".join(line.removeprefix("  | ") for line in group.splitlines()))
    return [*frames, *_cut(_without_machinery((_MEMBERS.strip() + members).splitlines()))]


def _without_machinery(lines: list[str]) -> list[str]:
    """Return what is drawn of the members of a group, without frames that are none of the reader's."""
    shown: list[str] = []
    is_left_out = False
    for line in lines:
        text = _BARS.sub("", line)
        if not text.startswith("    "):  # what follows a frame is indented once more
            is_left_out = text.startswith(_FRAME) and _is_machinery(text)
        if not is_left_out:
            shown.append(line)
    return shown


def _cut(lines: list[str]) -> list[str]:
    return lines if len(lines) <= MEMBER_LINES else [*lines[:MEMBER_LINES], "…"]


def _last_frames(traceback: str) -> list[str]:
    frames: list[list[str]] = []
    for line in traceback.splitlines():
        if line.startswith(_FRAME):
            frames.append([line])
        elif line.startswith(" ") and frames:
            frames[-1].append(line)
    shown: list[str] = []
    for frame in reversed([frame for frame in frames if not _is_machinery(frame[0])]):
        if shown and len(shown) + len(frame) > TRACEBACK_LINES:
            break
        shown = [*frame, *shown]
    return shown


def _is_machinery(line: str) -> bool:
    """Whether a frame is none that the reader has written, or led to: our own, or the loop that runs it."""
    file = line.removeprefix(_FRAME).partition('"')[0]
    return file.startswith(_MACHINERY) or file.startswith("<frozen")


def next_steps(
    run: RunState, place: Place, pen: Pen, awaited: Awaited = NOTHING, *, is_driven: bool = False
) -> Iterator[str]:
    """Yield what can be done next, if anything."""
    resume = place.command("resume", run.run_id)
    match run.status:
        case RunStatus.COMPLETED if any(map(content_refs, (run.outputs or {}).values())):
            yield _step(pen, "the result in full", place.command("show", run.run_id, "--result"))
        case RunStatus.COMPLETED:
            return
        case RunStatus.CANCELLED:
            yield _step(pen, "go on with it", place.command("retry", run.run_id))
            yield _step(pen, "start it again, from the beginning", start_again(run, place))
        case RunStatus.FAILED:
            yield _step(pen, "what happened", place.command("events", run.run_id))
            yield _step(pen, "what its nodes logged", place.command("logs", run.run_id))
            yield from _how_to_try_again(run, place, pen)
            yield _step(pen, "start it again, from the beginning", start_again(run, place))
        case RunStatus.QUARANTINED:
            yield _step(pen, "what happened", place.command("events", run.run_id))
            yield _step(pen, "try again", resume)
        case RunStatus.SUSPENDED if run.reason.startswith(IN_DOUBT):
            node = run.reason.removeprefix(IN_DOUBT).partition(",")[0]
            yield _step(
                pen,
                "say what became of it",
                place.command("resolve", run.run_id, node, "done", "--output", "JSON") + " (or retry, or fail)",
            )
            yield _step(pen, "then continue", resume)
        case RunStatus.SUSPENDED | RunStatus.AWAITING_INPUT:
            steps = [_step(pen, why, command) for why, command in how_to_end(run.run_id, awaited, place)]
            yield from steps
            yield _step(pen, "then continue" if steps else "continue", resume)
            if steps and run.wake_at is not None:
                yield _step(pen, "or stay with it, also for when its time has come", f"{resume} --stay")
        case status if status in MOVING and not is_driven:
            yield _step(pen, "continue", resume)
        case status if status in MOVING:
            yield from (_step(pen, why, command) for why, command in how_to_end(run.run_id, awaited, place))
            yield _step(pen, "follow", place.command("events", run.run_id, "--follow"))
        case _:
            yield _step(pen, "continue", resume)
            yield _step(pen, "give up", place.command("cancel", run.run_id))


def _how_to_try_again(run: RunState, place: Place, pen: Pen) -> Iterator[str]:
    limit, retry = run.settings.timeout_seconds, place.command("retry", run.run_id)
    if run.error is None or run.error.type != RUN_TIMEOUT or limit is None:
        yield _step(pen, "try again what has failed", retry)
        return
    fork = place.command("fork", run.run_id, "--timeout", "SECONDS")
    yield _step(pen, "begin another run with what this one has done, and more time", fork)
    yield _step(pen, f"try again what was stopped, with {limit:g} s as before", retry)


def final_word(run: RunState) -> str:
    """Return why a run that has ended without a result stays as it is."""
    how = "failed" if run.status is RunStatus.FAILED else "was cancelled"
    return f"Run {plain(run.run_id)} {how} before, and is not gone on with unless somebody says so: see above."


def start_again(run: RunState, place: Place) -> str:
    """Return the command that starts another run like this one, as far as it can be told."""
    file, module = run.source.get("file", ""), run.source.get("module", "")
    target = module if "." in module else _beside(file) if _mentions(file, run.workflow) else "FILE"
    given = [f"{name}={text}" for name, value in run.inputs.items() if (text := _as_input(value)) is not None]
    words = ["run", f"{target}:{run.workflow}", *(word for pair in given for word in ("--input", pair))]
    command = place.command(*words)
    if len(given) == len(run.inputs) and len(command) <= MOST_COMMAND_CHARS:
        return command
    return place.command(*words[:2], "--inputs", "FILE") + f" ({place.command('show', run.run_id)} names the inputs)"


def _as_input(value: Encoded) -> str | None:
    """Return a stored value as it is given on the command line; None if it is not at hand."""
    if blob_refs(value) or is_beyond_text(value):
        return None
    shown = readable(value)
    is_plain_text = isinstance(shown, str) and not shown.startswith(('"', "{", "[")) and shown.isprintable()
    return str(shown) if is_plain_text else msgspec.json.encode(shown).decode()


def _beside(file: str) -> str:
    """Return the path of a file, short if it is below the current folder."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _mentions(file: str, workflow: str) -> bool:
    """Whether the workflow is likely to be written in this file: one that came as a graph is not."""
    try:
        return workflow in Path(file).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return False


def _step(pen: Pen, why: str, command: str) -> str:
    return f"{pen.faint(f'{why}:')} {command}"
