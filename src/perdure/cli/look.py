"""Commands that look: `list`, `events`, `logs`. They drive nothing and change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import click
import msgspec

from perdure.cli.folding import Folding
from perdure.cli.marks import RUN_MARKS, painted, words_of
from perdure.cli.options import Place, WholeNumber, awaited, json_option, print_json, print_json_line, store_option
from perdure.cli.results import next_steps
from perdure.cli.stores import holding, opened
from perdure.cli.terminal import Paper, Pen, paper, require_readers
from perdure.cli.waits import what_is_awaited
from perdure.cli.words import cells, counted, day_and_time, duration, fitted, padded, plain, time_of_day, waking
from perdure.clock import SystemClock
from perdure.engine.inspect import (
    events_of,
    follow_events,
    iso_time,
    living_engines,
    load_run,
)
from perdure.ids import EngineId, RunId
from perdure.journal.events import Journal, Recorded, encode_event
from perdure.journal.states import MOVING, TERMINAL, RunStatus
from perdure.store.base import Store
from perdure.store.shapes import LogLine, RunFilter, RunSummary

DEFAULT_LIMIT = 20
PAGE = 500
INTERRUPTED = "interrupted"
"""Not a status of its own: the run would move if an engine drove it."""
STATUSES = (*(status.value for status in RunStatus), INTERRUPTED)
"""What runs can be chosen by."""
LAST_LOGS_SECONDS = 0.5
"""How long after the end of a run its last log lines may still arrive."""
NEWS_SECONDS = 1.0
UNFOLD_SECONDS = 5.0
"""How long what streams bring is held back, to be told in one line, while nothing else happens."""
LEAST_COLUMNS = 3
"""Id, workflow and status are listed however narrow the terminal is."""
LEAST_NAME = 6
WHY, LEAST_WHY, MOST_WHY = 5, 12, 80
"""The column that says what runs wait for: where it is, and how wide it is at least and at most."""


@click.command("list")
@click.argument("prefix", metavar="[RUN]", required=False)
@click.option("--status", multiple=True, type=click.Choice(STATUSES), metavar="STATUS",
              help="Only runs in this status, or that are interrupted. May be given several times.")  # fmt: skip
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option("--tag", metavar="TAG", help="Only runs that have this tag.")
@click.option("--limit", type=WholeNumber(min=1), default=DEFAULT_LIMIT, show_default=True, help="At most so many.")
@store_option
@json_option
@awaited
async def list_command(
    prefix: str | None,
    status: Sequence[str],
    workflow: str | None,
    tag: str | None,
    limit: int,
    store: Place,
    as_json: bool,
) -> None:
    """List runs, newest first: all of them, or those whose ids begin with RUN.

    The ids of runs that another run has started begin with the id of that one.

    \b
      perdure list
      perdure list reports-1:
      perdure list --status failed --workflow digest
    """
    async with opened(store) as source:
        living = await living_engines(source)
        runs = await _page_through(source, _Wanted(status, living), workflow, prefix, tag, limit + 1)
        others = not runs and bool(await source.list_archives(id_prefix=prefix, before=None, limit=1))
    if as_json:
        print_json([_summary_document(run, living) for run in runs[:limit]])
    else:
        _print_list(runs[:limit], living, more=len(runs) > limit, archived=others)


@click.command("events")
@click.argument("run", metavar="RUN")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run has ended.")
@click.option("--after", type=WholeNumber(min=0), default=0, metavar="SEQ", help="Only events after this number.")
@store_option
@json_option
@awaited
async def events_command(run: str, follow: bool, after: int, store: Place, as_json: bool) -> None:
    """Print the log of a run: everything that happened to it, in order.

    Batches of items that nodes have recorded one after the other are told in one line. With --json, every event is there. The
    log of a run that was started with --journal audit may have gaps.

    RUN is a run's id, or as much of its beginning as no other run has.

    \b
      perdure events 0198f2 --follow
      perdure events 0198f2 --json | jq -r '.[].type'
    """
    async with holding(store, run) as (source, (run_id,)):
        state = (await load_run(source, run_id)).run
        if follow:
            waiting = _Waiting(source, run_id, store)
            await _follow_events(source, run_id, after, waiting, as_json=as_json, journal=state.settings.journal)
            return
        entries = [entry async for entry in events_of(source, run_id, after=after)]
    if as_json:
        print_json([event_document(entry, state.settings.journal) for entry in entries])
        return
    if state.audit is not None:
        there = f"{counted(len(entries), 'event')} of {state.last_seq - min(after, state.last_seq)}"
        click.echo(
            f"perdure: the log of this run is written on the side and may have gaps: {there} are there", err=True
        )
    folding = Folding()
    for entry in entries:
        _print_lines(folding.add(entry))
    _print_lines(folding.flush())


@click.command("logs")
@click.argument("run", metavar="RUN")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run has ended.")
@store_option
@json_option
@awaited
async def logs_command(run: str, follow: bool, store: Place, as_json: bool) -> None:
    """Print what the nodes of a run have logged with `ctx.log`.

    RUN is a run's id, or as much of its beginning as no other run has.

    \b
      perdure logs 0198f2 --follow
    """
    async with holding(store, run) as (source, (run_id,)):
        if follow:
            async for line in _follow_logs(source, run_id, _Waiting(source, run_id, store)):
                _print_log(line, as_json=as_json, pen=paper().pen)
        else:
            lines = [line async for line in _logs_of(source, run_id)]
            if as_json:
                print_json([_log_document(line) for _, line in lines])
                return
            for _, line in lines:
                _print_log(line, as_json=False, pen=paper().pen)


def event_document(entry: Recorded, journal: Journal = "log") -> dict[str, Any]:
    """Return an event with its place in the log, as other programs read it. It is marked if that log may have gaps."""
    place = {"seq": entry.seq, "at": iso_time(entry.at), "branch": entry.branch_id, "epoch": entry.epoch}
    if journal != "log":
        place["journal"] = journal
    return place | msgspec.json.decode(encode_event(entry.event), type=dict[str, msgspec.Raw])


class _Wanted:
    """Which runs are wanted, by the words of the command line."""

    def __init__(self, words: Sequence[str], living: frozenset[EngineId]) -> None:
        self._statuses = {RunStatus(word) for word in words if word != INTERRUPTED}
        self._wants_interrupted = INTERRUPTED in words
        self._living = living

    def statuses(self) -> tuple[RunStatus, ...]:
        """Return the statuses that such runs can have; none stands for all."""
        return tuple(self._statuses | (MOVING if self._wants_interrupted else set()))

    def is_met(self, run: RunSummary) -> bool:
        if not self._wants_interrupted or run.status in self._statuses:
            return True
        return _is_left(run, self._living)


async def _page_through(
    store: Store, wanted: _Wanted, workflow: str | None, prefix: str | None, tag: str | None, limit: int
) -> list[RunSummary]:
    which = RunFilter(status=wanted.statuses(), workflow=workflow, id_prefix=prefix, tag=tag)
    runs: list[RunSummary] = []
    before: tuple[int, str] | None = None
    while len(runs) < limit:
        page = await store.list_runs(which, before=before, limit=min(PAGE, limit))
        if not page:
            break
        before = (page[-1].created_at, page[-1].run_id)
        runs += filter(wanted.is_met, page)
    return runs[:limit]


def _is_left(run: RunSummary, living: frozenset[EngineId]) -> bool:
    """Whether the run would move, and nobody drives it."""
    return run.status in MOVING and run.owner not in living


def _summary_document(run: RunSummary, living: frozenset[EngineId]) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "workflow": run.workflow,
        "version": run.version,
        "status": run.status,
        INTERRUPTED: _is_left(run, living),
        "reason": run.reason,
        "created_at": iso_time(run.created_at),
        "started_at": iso_time(run.started_at),
        "ended_at": iso_time(run.ended_at),
        "wake_at": iso_time(run.wake_at),
        "deleted_at": iso_time(run.deleted_at),
        "tags": run.tags,
    }


def _print_list(runs: Sequence[RunSummary], living: frozenset[EngineId], *, more: bool, archived: bool) -> None:
    sheet = paper()
    if not runs:
        click.echo("No runs here; there are some in the archive: perdure archive --list" if archived else "No runs.")
        return
    rows = [("RUN", "WORKFLOW", "STATUS", "STARTED", "TOOK", "WHY"), *(_row(run, living) for run in runs)]
    if not any(row[-1] for row in rows[1:]):
        rows = [row[:-1] for row in rows]
    widths = [max(cells(row[column]) for row in rows) for column in range(len(rows[0]))]
    if sheet.is_live:
        rows, widths = _narrowed(rows, widths, sheet.width)
    click.echo(sheet.pen.faint(_columns(rows[0], widths)))
    for run, row in zip(runs, rows[1:], strict=True):
        click.echo(_coloured_row(run, row, widths, sheet))
    if more:
        click.echo(sheet.pen.faint(f"… and more: --limit {max(100, len(runs) * 5)}"))


def _row(run: RunSummary, living: frozenset[EngineId]) -> tuple[str, ...]:
    is_left = _is_left(run, living)
    status = f"{RUN_MARKS[run.status][0]} {words_of(run.status)}" + (f", {INTERRUPTED}" if is_left else "")
    status += ", deleted" if run.deleted_at is not None else ""
    started = "" if run.started_at is None else day_and_time(run.started_at)
    named = plain(run.run_id), f"{plain(run.workflow)} v{run.version}"
    return *named, status, started, _took(run, is_left=is_left), _why(run)


def _why(run: RunSummary) -> str:
    """Return why a run rests, or what it waits for."""
    if run.status in MOVING or run.status in TERMINAL:
        return ""
    limit = waking(run.reason, run.wake_at, now=SystemClock().now_micros())
    return fitted(f"{plain(run.reason)}{limit}", MOST_WHY)


def _took(run: RunSummary, *, is_left: bool) -> str:
    if run.started_at is None or (run.ended_at is None and (is_left or run.status not in MOVING)):
        return ""
    return duration((run.ended_at or SystemClock().now_micros()) - run.started_at)


def _narrowed(
    rows: Sequence[tuple[str, ...]], widths: Sequence[int], width: int
) -> tuple[list[tuple[str, ...]], list[int]]:
    """Cut what is waited for, leave out the last columns, and cut the names of workflows, until a row fits.

    Ids are never cut: they are copied.
    """
    kept = list(widths)
    if len(kept) > WHY:
        kept[WHY] = min(kept[WHY], max(width - _total(kept[:WHY]) - 2, LEAST_WHY))
    while len(kept) > LEAST_COLUMNS and _total(kept) > width:
        kept.pop()
    kept[1] = max(min(kept[1], kept[1] - (_total(kept) - width)), min(kept[1], LEAST_NAME))
    return [row[: len(kept)] for row in rows], kept


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _columns(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(padded(text, width) for text, width in zip(row, widths, strict=True)).rstrip()


def _coloured_row(run: RunSummary, row: Sequence[str], widths: Sequence[int], sheet: Paper) -> str:
    name, workflow, status, *rest = (padded(text, width) for text, width in zip(row, widths, strict=True))
    meaning = "warning" if INTERRUPTED in status else RUN_MARKS[run.status][1]
    return "  ".join((name, workflow, painted(sheet.pen, status, meaning), *map(sheet.pen.faint, rest))).rstrip()


async def _follow_events(
    store: Store, run_id: RunId, after: int, waiting: _Waiting, *, as_json: bool, journal: Journal
) -> None:
    folding, clock = Folding(), SystemClock()
    unfolded_at = clock.monotonic()

    async def wait() -> None:
        nonlocal unfolded_at
        if clock.monotonic() - unfolded_at >= UNFOLD_SECONDS:
            unfolded_at = clock.monotonic()
            _print_lines(folding.flush())
        require_readers()
        await waiting.tell()

    async for entry in follow_events(store, run_id, after=after, on_wait=wait):
        if as_json:
            print_json_line(event_document(entry, journal))
        else:
            _print_lines(folding.add(entry))
    _print_lines(folding.flush())


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


async def _logs_of(store: Store, run_id: RunId, after: int = 0) -> AsyncIterator[tuple[int, LogLine]]:
    while page := await store.load_logs(run_id, after=after, limit=PAGE):
        for numbered in page:
            yield numbered
        after = page[-1][0]


class _Waiting:
    """Says, once for each time it comes to that, that nothing will follow unless somebody acts."""

    def __init__(self, store: Store, run_id: RunId, place: Place) -> None:
        self._store = store
        self._run_id = run_id
        self._place = place
        self._told_at: int | None = None

    async def tell(self) -> None:
        stored = await load_run(self._store, self._run_id)
        run = stored.run
        is_driven = stored.owner is not None and stored.owner in await living_engines(self._store)
        if is_driven or run.status in TERMINAL or self._told_at == run.last_seq:
            return
        self._told_at = run.last_seq
        what = "no engine drives it" if run.status in MOVING else f"it is {words_of(run.status)}"
        click.echo(f"perdure: waiting for run {plain(run.run_id)}, but {what}", err=True)
        for line in next_steps(run, self._place, Pen(), await what_is_awaited(self._store, stored)):
            click.echo(f"perdure: {line}", err=True)


async def _follow_logs(store: Store, run_id: RunId, waiting: _Waiting) -> AsyncIterator[LogLine]:
    after = 0
    while True:
        has_ended = (await load_run(store, run_id)).run.status in TERMINAL
        if has_ended:
            # Lines are written a moment after what they tell of.
            await asyncio.sleep(LAST_LOGS_SECONDS)
        async for number, line in _logs_of(store, run_id, after):
            yield line
            after = number
        if has_ended:
            return
        require_readers()
        await waiting.tell()
        await store.wait_for_news(NEWS_SECONDS)


def _log_document(line: LogLine) -> dict[str, Any]:
    return {
        "at": iso_time(line.at),
        "node_id": line.node_id,
        "attempt": line.attempt,
        "level": line.level,
        "message": line.message,
        "fields": line.fields,
    }


def _print_log(line: LogLine, *, as_json: bool, pen: Pen) -> None:
    if as_json:
        print_json_line(_log_document(line))
        return
    level = line.level.upper()
    shown = pen.bad(level) if level == "ERROR" else pen.warning(level) if level == "WARNING" else pen.faint(level)
    # Which item it is about comes first: the line belongs to the call for that item.
    fields = {"item": line.fields["item"], **line.fields} if "item" in line.fields else line.fields
    facts = "".join(f" {plain(name)}={plain(str(value))}" for name, value in fields.items())
    click.echo(f"{time_of_day(line.at)} {shown} {plain(line.node_id)}: {plain(line.message)}{pen.faint(facts)}")
