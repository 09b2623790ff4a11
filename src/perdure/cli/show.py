"""`perdure show`: one run, as a picture for people or as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from perdure.cli.exits import Exit
from perdure.cli.forecast import forecast_line
from perdure.cli.gantt import draw
from perdure.cli.marks import words_of
from perdure.cli.options import Place, awaited, json_option, place_in_log, print_json, store_option
from perdure.cli.questions import takes
from perdure.cli.results import next_steps, short_values, trouble, verdict
from perdure.cli.stores import holding
from perdure.cli.terminal import Paper, paper
from perdure.cli.timeline import timeline_of, timeline_of_rows
from perdure.cli.waits import waiting_words, what_is_awaited
from perdure.cli.words import counted, day_and_time, duration, error_line, exactly, fitted, in_full, plain, readable
from perdure.clock import SystemClock
from perdure.engine.inspect import (
    events_of,
    is_answered,
    living_engines,
    load_graph,
    load_run,
    open_waits,
    report_run,
    report_then,
    whole_values,
)
from perdure.engine.stored.past import end_of_branch, log_until, seq_of, stored_at
from perdure.engine.stored.progress import headway_of, load_estimator, outlook_of
from perdure.errors import ProgramError, ValuesDeleted
from perdure.graph.model import DEFAULT_OUTPUT, Graph, Node
from perdure.graph.ordering import nodes_in_order
from perdure.ids import RunId, Seq
from perdure.journal.deletion import DELETED
from perdure.journal.events import ItemFailed, Recorded
from perdure.journal.pace import Pace
from perdure.journal.states import MOVING, TERMINAL, CheckpointState, NodeState, NodeStatus, RunState, WaitKind
from perdure.store.base import Store
from perdure.store.shapes import StoredRun

MOST_ITEMS = 3
"""How many failed items of a node are named."""
MOST_WAITS = 10
"""How many of the things that a run waits for are named."""
MOST_ERRORS = 5
"""How many failed nodes are shown with their errors."""

TOLD = {
    "pause": "to pause",
    "resume": "to go on",
    "cancel": "to stop for good",
    "retry": "to try again what has failed",
    "jump": "to go back",
    "restore": "to go back",
}
"""What may become of a run as a whole by what it is told."""


@click.command("show")
@click.argument("run", metavar="RUN")
@click.option("--result", is_flag=True, help="Print the result alone and in full, also if it is large.")
@click.option(
    "--at", "place", metavar="PLACE", help="As it was: after the event of this number, or at this checkpoint."
)
@click.option("--branch", type=int, metavar="N", help="As it was at the end of this line of history.")
@store_option
@json_option
@awaited
async def show_command(
    run: str, result: bool, place: str | None, branch: int | None, store: Place, as_json: bool
) -> int:
    """Show a run: its nodes over time, every attempt, its result, its errors, and what to do next.

    RUN is a run's id, or as much of its beginning as no other run has. With --result, a text or bytes are printed as they
    are, anything else as JSON.

    \b
      perdure show 0198f2
      perdure show 0198f2 --json | jq .outputs
      perdure show 0198f2 --result > page.html
      perdure show 0198f2 --at 40
      perdure show 0198f2 --branch 1 --json
    """
    if place is not None and branch is not None:
        raise click.UsageError("--at and --branch do not go together: each says which moment is meant.")
    async with holding(store, run) as (source, (run_id,)):
        seq = await _moment(source, run_id, place, branch)
        if result:
            then = await load_run(source, run_id) if seq is None else await stored_at(source, run_id, seq)
            return await _print_result(source, then.run, as_json=as_json)
        if as_json:
            print_json(await report_run(source, run_id) if seq is None else await report_then(source, run_id, seq))
            return Exit.DONE
        lines = await (picture(source, run_id, store, paper()) if seq is None else past(source, run_id, seq, paper()))
        for line in lines:
            click.echo(line)
    return Exit.DONE


async def _moment(store: Store, run_id: RunId, place: str | None, branch: int | None) -> Seq | None:
    """Return the event that was meant; None if it is how the run stands."""
    if branch is not None:
        return await end_of_branch(store, run_id, branch)
    return None if place is None else await seq_of(store, run_id, place_in_log(place))


async def past(store: Store, run_id: RunId, seq: Seq, sheet: Paper) -> list[str]:
    """Return what `show` prints of a run as it was."""
    stored = await stored_at(store, run_id, seq)
    graph = await load_graph(store, stored.run)
    log = await log_until(store, run_id, seq)
    present = await load_run(store, run_id)
    last = present.run.last_seq
    # What was under way then had not been lost: what has become of it is said by later events, if there are any.
    goes_on = seq < last or present.owner in await living_engines(store)
    return [
        *_header(stored.run, sheet, is_left=False),
        f"{sheet.pen.faint('as of  ')} event {seq} of {last}, {day_and_time(log[-1].at)}",
        *spaced(chart(stored, graph, log, sheet, now=log[-1].at if goes_on else None)),
        *_failed_items(stored, log, sheet),
        *_errors(stored, sheet),
    ]


async def _print_result(store: Store, run: RunState, *, as_json: bool) -> int:
    if run.outputs is None:
        raise ProgramError(f"Run {run.run_id!r} has no result: it is {words_of(run.status)}. `perdure show` says more.")
    if DELETED in run.outputs.values():
        raise ValuesDeleted(run.run_id)
    outputs = await whole_values(store, run.outputs)
    if as_json:
        print_json(outputs)
    elif set(outputs) <= {DEFAULT_OUTPUT}:
        value = exactly(outputs[DEFAULT_OUTPUT]) if outputs else ""
        click.echo(value, nl=isinstance(value, str))
    else:
        click.echo(in_full({name: readable(value) for name, value in outputs.items()}))
    return Exit.DONE


async def picture(store: Store, run_id: RunId, place: Place, sheet: Paper) -> list[str]:
    """Return everything that `show` prints for people."""
    stored = await load_run(store, run_id)
    graph = await load_graph(store, stored.run)
    log = [entry async for entry in events_of(store, run_id)]
    is_driven = stored.owner in await living_engines(store)
    awaited = await what_is_awaited(store, stored)
    return [
        *_header(stored.run, sheet, is_left=stored.run.status in MOVING and not is_driven),
        *await _foretold(store, stored, graph, log, sheet, is_driven=is_driven),
        *_tagged(await store.load_tags(run_id), sheet),
        *_deleted(await store.load_deletion(run_id), sheet),
        *_saved(await store.last_checkpoint(run_id), sheet),
        *_told(stored, sheet),
        *spaced(chart(stored, graph, log, sheet, now=SystemClock().now_micros() if is_driven else None)),
        *spaced(_waits(stored, sheet)),
        *_failed_items(stored, log, sheet),
        *_errors(stored, sheet),
        *spaced(next_steps(stored.run, place, sheet.pen, awaited, is_driven=is_driven)),
    ]


def _header(run: RunState, sheet: Paper, *, is_left: bool) -> Iterator[str]:
    pen = sheet.pen
    interrupted = pen.warning(", interrupted: no engine drives it") if is_left else ""
    yield f"{pen.strong(plain(run.workflow))} {pen.faint(f'version {run.version}')}  {verdict(run, pen)}{interrupted}"
    yield f"{pen.faint('run    ')} {plain(run.run_id)}"
    if run.audit is not None:
        yield f"{pen.faint('journal')} audit: the tables are what is recorded, the log may have gaps"
    if run.started_at is not None:
        yield f"{pen.faint('started')} {day_and_time(run.started_at)}"
    for label, values in (("inputs ", run.inputs), ("outputs", run.outputs or {})):
        known = {name: value for name, value in values.items() if value != DELETED}
        for line in short_values(known, sheet.width - 8):
            yield f"{pen.faint(label)} {line}"
            label = " " * len(label)


async def _foretold(
    store: Store, stored: StoredRun, graph: Graph | None, log: Sequence[Recorded], sheet: Paper, *, is_driven: bool
) -> list[str]:
    """Return how far a run has come that has not ended, and how long the rest takes, if earlier runs tell."""
    if stored.run.status in TERMINAL:
        return []
    estimator, pace, now = await load_estimator(store, stored.run, graph), Pace(log), SystemClock().now_micros()
    streams = headway_of(stored, graph, pace, now=now if is_driven else None)
    outlook = outlook_of(stored, graph, estimator, streams, pace, now=now, is_driven=is_driven)
    line = forecast_line(outlook.estimate, stored.run, is_driven=is_driven)
    return [f"{sheet.pen.faint('so far ')} {line}"] if line else []


def _tagged(tags: Sequence[str], sheet: Paper) -> Iterator[str]:
    if tags:
        yield f"{sheet.pen.faint('tags   ')} {plain(', '.join(tags))}"


def _deleted(at: int | None, sheet: Paper) -> Iterator[str]:
    if at is not None:
        yield f"{sheet.pen.faint('deleted')} {day_and_time(at)}: its values are gone"


def _saved(last: CheckpointState | None, sheet: Paper) -> Iterator[str]:
    if last is not None:
        where = f"up to event {last.seq}, {day_and_time(last.saved_at)}"
        yield f"{sheet.pen.faint('saved  ')} {plain(last.name)} {sheet.pen.faint(where)}"


def _told(stored: StoredRun, sheet: Paper) -> Iterator[str]:
    """Yield what the run was told to do, and nobody who drives it has taken up yet."""
    for command in stored.commands:
        if (what := TOLD.get(command.kind)) is not None:
            reason = str(command.payload.get("reason", ""))
            when = f"({day_and_time(command.created_at)}, and not taken up yet)"
            yield f"{sheet.pen.faint('told   ')} {what}{': ' + plain(reason) if reason else ''} {sheet.pen.faint(when)}"


def chart(
    stored: StoredRun, graph: Graph | None, log: Sequence[Recorded], sheet: Paper, *, now: int | None
) -> Iterator[str]:
    """Yield the nodes of a run over time. `now` is the moment until when an engine drives it, or drove it; None if none does."""
    states = {state.node_id: state for state in stored.nodes}
    nodes = nodes_in_order(graph) if graph is not None else [Node(id=node_id, type="") for node_id in states]
    streams = headway_of(stored, graph, Pace(log), now=now)
    # A log that may have gaps would leave nodes out that have run.
    timeline = (
        timeline_of(log, now=now) if stored.run.audit is None else timeline_of_rows(stored.run, stored.nodes, now=now)
    )
    return draw(nodes, states, timeline, sheet, streams)


def _waits(stored: StoredRun, sheet: Paper) -> Iterator[str]:
    """Yield what the run waits for: who, for what, since when, and under which id it is answered."""
    pen, now = sheet.pen, SystemClock().now_micros()
    waits = open_waits(stored)
    for wait in waits[:MOST_WAITS]:
        yield f"{pen.warning('◫')} {pen.strong(plain(wait.node_id))} {waiting_words(wait, now=now)}"
        parts = [f"since {day_and_time(wait.opened_at)} ({duration(now - wait.opened_at)})"]
        if is_answered(stored, wait):
            parts.append("answered, and to be taken up when the run is driven")
        elif wait.kind is WaitKind.ASK:
            parts.append(f"question {plain(wait.wait_id)}, which takes {takes(wait)}")
        yield pen.faint(f"  {'; '.join(parts)}")
    if len(waits) > MOST_WAITS:
        yield pen.faint(f"and {counted(len(waits) - MOST_WAITS, 'more wait')}: --json has all of them")


def _failed_items(stored: StoredRun, log: Sequence[Recorded], sheet: Paper) -> Iterator[str]:
    """Yield which items were given up, where that did not fail their node: its error names the one that did."""
    for node in stored.nodes:
        if node.stream is not None and node.stream.failed and node.status is not NodeStatus.FAILED:
            yield from spaced(_items_of(node, node.stream.failed, log, sheet))


def _items_of(node: NodeState, failed: int, log: Sequence[Recorded], sheet: Paper) -> Iterator[str]:
    pen = sheet.pen
    yield f"{pen.warning('✗')} {pen.strong(plain(node.node_id))}: {counted(failed, 'item')} failed and left out"
    failures = [
        entry.event for entry in log if isinstance(entry.event, ItemFailed) and entry.event.node_id == node.node_id
    ]
    # Those of a stream that was given up with its branch came before.
    given_up = [event for event in failures if event.final and not event.fails_node][-failed:]
    for event in sorted(given_up, key=lambda event: event.position)[:MOST_ITEMS]:
        yield fitted(f"  item {event.position}: {error_line(event.error)}", sheet.width)
    if failed > MOST_ITEMS:
        yield pen.faint(f"  and {failed - MOST_ITEMS:,} more")


def _errors(stored: StoredRun, sheet: Paper) -> Iterator[str]:
    failed = [node for node in stored.nodes if node.status is NodeStatus.FAILED and node.error is not None]
    for node in failed[:MOST_ERRORS]:
        yield from spaced(_error(node, sheet))
    if len(failed) > MOST_ERRORS:
        yield sheet.pen.faint(f"and {counted(len(failed) - MOST_ERRORS, 'more failed node')}")
    if stored.run.error is not None and stored.run.failed_node is None:
        yield from spaced(trouble(None, stored.run.error, sheet))


def _error(node: NodeState, sheet: Paper) -> Iterator[str]:
    if node.error is not None:
        yield from trouble(node.node_id, node.error, sheet)


def spaced(lines: Iterator[str]) -> Iterator[str]:
    """Put an empty line before a block, if there is one."""
    for number, line in enumerate(lines):
        if not number:
            yield ""
        yield line
