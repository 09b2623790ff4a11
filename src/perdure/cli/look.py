"""Commands that look: `list`, `events`, `logs`. They drive nothing and change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import click
import msgspec

from perdure.cli.lines import line_of
from perdure.cli.marks import RUN_MARKS, painted, words_of
from perdure.cli.options import Place, awaited, json_option, print_json, print_json_line, store_option
from perdure.cli.stores import opened
from perdure.cli.terminal import Paper, Pen, paper
from perdure.cli.words import cells, day_and_time, duration, padded, plain, time_of_day
from perdure.clock import SystemClock
from perdure.engine.inspect import (
    events_of,
    find_run,
    follow_events,
    iso_time,
    living_engines,
    load_run,
)
from perdure.ids import EngineId, RunId
from perdure.journal.events import Recorded, encode_event
from perdure.journal.states import MOVING, TERMINAL, RunStatus
from perdure.store.base import LogLine, RunFilter, RunSummary, Store

DEFAULT_LIMIT = 20
PAGE = 500
LAST_LOGS_SECONDS = 0.5
"""How long after the end of a run its last log lines may still arrive."""
NEWS_SECONDS = 1.0


@click.command("list")
@click.option("--status", multiple=True, type=click.Choice([status.value for status in RunStatus]), metavar="STATUS",
              help="Only runs in this status. May be given several times.")  # fmt: skip
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option("--limit", type=click.IntRange(min=1), default=DEFAULT_LIMIT, show_default=True, help="At most so many.")
@store_option
@json_option
@awaited
async def list_command(status: Sequence[str], workflow: str | None, limit: int, store: Place, as_json: bool) -> None:
    """List runs, newest first.

    \b
      perdure list
      perdure list --status failed --workflow digest
    """
    which = RunFilter(status=tuple(map(RunStatus, status)), workflow=workflow)
    async with opened(store) as source:
        runs = await _page_through(source, which, limit + 1)
        living = await living_engines(source)
    if as_json:
        print_json([_summary_document(run) for run in runs[:limit]])
    else:
        _print_list(runs[:limit], living, more=len(runs) > limit)


@click.command("events")
@click.argument("run", metavar="RUN")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run has ended.")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only events after this number.")
@store_option
@json_option
@awaited
async def events_command(run: str, follow: bool, after: int, store: Place, as_json: bool) -> None:
    """Print the log of a run: everything that happened to it, in order.

    RUN is a run's id, or as much of its beginning as no other run has.

    \b
      perdure events 0198f2 --follow
      perdure events 0198f2 --json | jq -r '.[].type'
    """
    async with opened(store) as source:
        run_id = await find_run(source, run)
        if follow:
            async for entry in follow_events(source, run_id, after=after):
                if as_json:
                    print_json_line(event_document(entry))
                else:
                    _print_event(entry)
            return
        entries = [entry async for entry in events_of(source, run_id, after=after)]
    if as_json:
        print_json([event_document(entry) for entry in entries])
        return
    for entry in entries:
        _print_event(entry)


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
    async with opened(store) as source:
        run_id = await find_run(source, run)
        if follow:
            async for line in _follow_logs(source, run_id):
                _print_log(line, as_json=as_json, pen=paper().pen)
        else:
            lines = [line async for line in _logs_of(source, run_id)]
            if as_json:
                print_json([_log_document(line) for _, line in lines])
                return
            for _, line in lines:
                _print_log(line, as_json=False, pen=paper().pen)


def event_document(entry: Recorded) -> dict[str, Any]:
    """Return an event with its place in the log, as other programs read it."""
    place = {"seq": entry.seq, "at": iso_time(entry.at), "branch": entry.branch_id, "epoch": entry.epoch}
    return place | msgspec.json.decode(encode_event(entry.event), type=dict[str, msgspec.Raw])


async def _page_through(store: Store, which: RunFilter, limit: int) -> list[RunSummary]:
    runs: list[RunSummary] = []
    while len(runs) < limit:
        before = (runs[-1].created_at, runs[-1].run_id) if runs else None
        page = await store.list_runs(which, before=before, limit=min(PAGE, limit - len(runs)))
        if not page:
            break
        runs += page
    return runs


def _summary_document(run: RunSummary) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "workflow": run.workflow,
        "version": run.version,
        "status": run.status,
        "reason": run.reason,
        "created_at": iso_time(run.created_at),
        "started_at": iso_time(run.started_at),
        "ended_at": iso_time(run.ended_at),
    }


def _print_list(runs: Sequence[RunSummary], living: frozenset[EngineId], *, more: bool) -> None:
    sheet = paper()
    if not runs:
        click.echo("No runs.")
        return
    rows = [("RUN", "WORKFLOW", "STATUS", "STARTED", "TOOK"), *(_row(run, living) for run in runs)]
    widths = [max(cells(row[column]) for row in rows) for column in range(len(rows[0]))]
    click.echo(sheet.pen.faint(_columns(rows[0], widths)))
    for run, row in zip(runs, rows[1:], strict=True):
        click.echo(_coloured_row(run, row, widths, sheet))
    if more:
        click.echo(sheet.pen.faint(f"… and more: --limit {max(100, len(runs) * 5)}"))


def _row(run: RunSummary, living: frozenset[EngineId]) -> tuple[str, ...]:
    is_left = run.status in MOVING and run.owner not in living
    status = f"{RUN_MARKS[run.status][0]} {words_of(run.status)}" + (", interrupted" if is_left else "")
    started = "" if run.started_at is None else day_and_time(run.started_at)
    return plain(run.run_id), f"{plain(run.workflow)} v{run.version}", status, started, _took(run, is_left=is_left)


def _took(run: RunSummary, *, is_left: bool) -> str:
    if run.started_at is None or (run.ended_at is None and (is_left or run.status not in MOVING)):
        return ""
    return duration((run.ended_at or SystemClock().now_micros()) - run.started_at)


def _columns(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(padded(text, width) for text, width in zip(row, widths, strict=True)).rstrip()


def _coloured_row(run: RunSummary, row: Sequence[str], widths: Sequence[int], sheet: Paper) -> str:
    name, workflow, status, *rest = (padded(text, width) for text, width in zip(row, widths, strict=True))
    meaning = "warning" if "interrupted" in status else RUN_MARKS[run.status][1]
    return "  ".join((name, workflow, painted(sheet.pen, status, meaning), *map(sheet.pen.faint, rest))).rstrip()


def _print_event(entry: Recorded) -> None:
    click.echo(f"{entry.seq:>5} {line_of(entry)}")


async def _logs_of(store: Store, run_id: RunId, after: int = 0) -> AsyncIterator[tuple[int, LogLine]]:
    while page := await store.load_logs(run_id, after=after, limit=PAGE):
        for numbered in page:
            yield numbered
        after = page[-1][0]


async def _follow_logs(store: Store, run_id: RunId) -> AsyncIterator[LogLine]:
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
    facts = "".join(f" {plain(name)}={plain(str(value))}" for name, value in line.fields.items())
    click.echo(f"{time_of_day(line.at)} {shown} {plain(line.node_id)}: {plain(line.message)}{pen.faint(facts)}")
