"""The command about what feeds runs from outside: `triggers` lists it, `fire` feeds an inbox, `next` tells times."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import click
import msgspec

from perdure.cli.exits import Exit
from perdure.cli.options import Place, WholeNumber, awaited, json_option, not_empty, print_json, store_option
from perdure.cli.send import read_item
from perdure.cli.stores import opened, require
from perdure.cli.terminal import Paper, paper
from perdure.cli.words import cells, fitted, padded, plain, until, value_line
from perdure.clock import SystemClock, from_micros
from perdure.engine.engine import Engine
from perdure.engine.inspect import find_run, living_engines, load_graph, load_run
from perdure.engine.runs.run import Run
from perdure.engine.runs.sources import TRIGGERS
from perdure.engine.starting.inputs import stream_inputs
from perdure.engine.triggers import TriggerReport, living_triggers, triggers_of
from perdure.graph.constants import is_object
from perdure.graph.model import FOLDER, INBOX, REDIS_STREAM, SCHEDULE, STREAM_INPUT
from perdure.graph.templates import VALUE, marker_of
from perdure.ids import RunId, new_id
from perdure.journal.states import MOVING, WAITING, NodeStatus, RunState
from perdure.nodes.schedule import next_times

DEFAULT_LIMIT = 100
MOST_TIMES = 1_000
MOST_CURSOR = 40
STANDARD_INPUT = "-"
LIST = "list"


class _Triggers(click.Group):
    """Lists unless it is told otherwise: `perdure triggers RUN` is short for `perdure triggers list RUN`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_other = bool(args) and (args[0] in self.commands or args[0] in self.get_help_option_names(ctx))
        return super().parse_args(ctx, args if is_other else [LIST, *args])


@click.group("triggers", cls=_Triggers)
def triggers_command() -> None:
    """List what feeds runs from outside, feed it, and see when a schedule fires.

    Without a word, or with the id of a run, it lists: `perdure triggers list --help` has the options.

    \b
      perdure triggers
      perdure triggers 0198f2
      perdure triggers fire 0198f2 orders '{"amount": 3}' --id order-17
      perdure triggers next "30 2 * * *" --tz Europe/Berlin
    """


@triggers_command.command(LIST)
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--limit", type=WholeNumber(min=1), default=DEFAULT_LIMIT, show_default=True, help="At most so many.")
@store_option
@json_option
@awaited
async def list_triggers_command(run: str | None, limit: int, store: Place, as_json: bool) -> int:
    """List the triggers of runs.

    They are those of all runs that have not ended, or of one RUN: how many inputs have come, how far the outside has been read,
    and when a schedule fires next.

    \b
      perdure triggers
      perdure triggers 0198f2 --json
    """
    async with opened(store) as source:
        if run is None:
            found = await living_triggers(source, limit=limit + 1)
        else:
            found = await triggers_of(source, await load_run(source, await find_run(source, run)))
    if as_json:
        print_json(found[:limit])
    elif not found:
        click.echo("No triggers.")
    else:
        _print(found[:limit], paper(), more=len(found) > limit)
    return Exit.DONE


@triggers_command.command("fire")
@click.argument("run", metavar="RUN")
@click.argument("node", metavar="NODE")
@click.argument("value", metavar="[VALUE]", required=False)
@click.option("--id", "input_id", metavar="ID", callback=not_empty,
              help="Of the input: the same one twice has no effect. Made up, and printed, unless it is given.")  # fmt: skip
@click.option("--cursor", metavar="C", callback=not_empty, help="How far the outside has been read. It only moves on.")
@store_option
@json_option
def fire_command(
    run: str, node: str, value: str | None, input_id: str | None, cursor: str | None, store: Place, as_json: bool
) -> int:
    """Give something to an inbox of a run. It is durable when this ends, and taken once.

    A VALUE is read as JSON where that fits the inbox, and is a text otherwise; `-` reads it from standard input, and without one
    it is null. This needs none of the run's code, and does not drive the run: `perdure resume` does, unless an engine is running.

    \b
      perdure triggers fire 0198f2 orders '{"amount": 3}' --id order-17 --cursor 17
      curl -s https://example.org/order | perdure triggers fire 0198f2 orders -
    """
    require(store)
    text = sys.stdin.read() if value == STANDARD_INPUT else value
    chosen = input_id or new_id()
    run_id, is_new, goes_on = asyncio.run(_fire(run, node, text, chosen, cursor, store))
    if as_json:
        print_json({"run_id": run_id, "node_id": node, "input_id": chosen, "cursor": cursor, "delivered": is_new})
        return Exit.DONE
    told = "delivered" if is_new else "was delivered before, and has no effect"
    then = "" if goes_on or not is_new else f". `{store.command('resume', run_id)}` goes on."
    click.echo(f"input {plain(chosen)} for {plain(node)} of run {plain(run_id)}: {told}{then}")
    return Exit.DONE


@triggers_command.command("next")
@click.argument("cron", metavar="CRON")
@click.option("--tz", default="UTC", metavar="ZONE", show_default=True, help="The time zone of the schedule.")
@click.option("--count", type=WholeNumber(min=1, max=MOST_TIMES), default=5, show_default=True, help="How many times.")
@click.option(
    "--after", metavar="TIME", help="As in 2026-01-31T12:00, in that zone unless it says otherwise. Else now."
)
@json_option
def next_command(cron: str, tz: str, count: int, after: str | None, as_json: bool) -> int:
    """Tell when a schedule fires. CRON has five fields: minute, hour, day, month, weekday.

    \b
      perdure triggers next "30 2 * * *" --tz Europe/Berlin
      perdure triggers next @monthly --count 12 --after 2026-01-01
    """
    next_times(
        cron, tz, from_micros(0), 1
    )  # what is wrong with the schedule is told before what is wrong with the time
    begin = from_micros(SystemClock().now_micros()) if after is None else _moment(after, tz)
    try:
        times = next_times(cron, tz, begin, count)
    except OverflowError:
        raise click.UsageError("--after is too near to the beginning or the end of all calendars.") from None
    if as_json:
        print_json([at.isoformat() for at in times])
    else:
        for at in times:
            click.echo(f"{at:%a} {at.isoformat(sep=' ')}")
    return Exit.DONE


def _moment(text: str, tz: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"--after is no time: {text!r}. Write it as in 2026-01-31T12:00.") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=ZoneInfo(tz))


async def _fire(
    run: str, node: str, text: str | None, input_id: str, cursor: str | None, place: Place
) -> tuple[RunId, bool, bool]:
    """Deliver; return to which run, whether it is new, and whether some engine is running that may go on with it."""
    async with Engine(place.url, workflows=(), recover=False) as engine:  # without workflows it cannot drive the run
        run_id = await find_run(engine.store, run)
        target: Run[Any] = await engine.get(run_id)
        state = await target.state()
        await _require_inbox(engine, state, node, place)
        schema = stream_inputs((await engine.prepared(state)).graph).get(node, {})
        value = None if text is None else read_item(text, schema)
        is_new = await target.deliver(node, value, id=input_id, cursor=cursor)
        return run_id, is_new, bool(await living_engines(engine.store) - {engine.engine_id})


async def _require_inbox(engine: Engine, run: RunState, node: str, place: Place) -> None:
    graph = await load_graph(engine.store, run)
    types = {} if graph is None else {known.id: known.type for known in graph.nodes}
    kind = next((kind for name, kind in types.items() if name == node), None)
    if kind == STREAM_INPUT:
        send = place.command("send", run.run_id, node, "ITEM")
        raise click.UsageError(f"{plain(node)} of run {plain(run.run_id)} is an input, and no inbox: {send}")
    if kind != INBOX:
        inboxes = ", ".join(plain(name) for name, kind in types.items() if kind == INBOX) or "none"
        what = "there is no such node" if kind is None else f"it is a {plain(_short(kind))}"
        raise click.UsageError(
            f"{plain(node)} of run {plain(run.run_id)} is no inbox: {what}. Inboxes of the run: {inboxes}."
        )


def _print(found: Sequence[TriggerReport], sheet: Paper, *, more: bool) -> None:
    now = SystemClock().now_micros()
    titles = ("RUN", "NODE", "STATUS", "INPUTS", "NEXT", "CURSOR", "")
    rows = [titles, *(_row(trigger, now=now) for trigger in found)]
    last = len(titles) - 1
    widths = [max(cells(row[column]) for row in rows) for column in range(last)]
    for number, row in enumerate(rows):
        head = "  ".join(padded(text, width) for text, width in zip(row[:last], widths, strict=True))
        room = max(sheet.width - cells(head) - 2, 20)
        line = f"{head}  {fitted(row[last], room) if sheet.is_live else row[last]}".rstrip()
        click.echo(sheet.pen.faint(line) if not number else line)
    if more:
        click.echo(sheet.pen.faint(f"… and more: --limit {len(found) * 5}"))


def _row(trigger: TriggerReport, *, now: int) -> tuple[str, ...]:
    cursor = "" if trigger.cursor is None else fitted(_cursor(trigger), MOST_CURSOR)
    due = "" if trigger.next_at is None else until(_micros(trigger.next_at), now=now)
    what = f"{plain(_short(trigger.type))} {plain(_settings(trigger))}".rstrip()
    return plain(trigger.run_id), plain(trigger.node_id), _status(trigger), str(trigger.inputs), due, cursor, what


def _status(trigger: TriggerReport) -> str:
    """Return how the trigger stands: as its run does where that is held up, else as its node does."""
    if trigger.run_status not in MOVING and trigger.run_status not in WAITING:
        return trigger.run_status.value.replace("_", " ")
    return "waits" if trigger.status is NodeStatus.SUSPENDED else trigger.status.value.replace("_", " ")


def _cursor(trigger: TriggerReport) -> str:
    assert trigger.cursor is not None
    document = msgspec.json.decode(trigger.cursor)
    match document:
        case {"$": "datetime", "v": {"iso": str(iso)}}:
            return plain(iso.replace("T", " "))
        case _:
            return value_line(trigger.cursor)


def _settings(trigger: TriggerReport) -> str:
    """Return in a few words what a trigger looks at."""
    config = {name: value[VALUE] if marker_of(value) == VALUE else value for name, value in trigger.config.items()}
    if (words := _WORDS.get(trigger.type)) is not None:
        return words(config).strip()
    return " ".join(f"{name}={_shown(value)}" for name, value in config.items())


def _schedule_words(config: dict[str, Any]) -> str:
    policy = config.get("catch_up", "latest")
    every = config.get("every")  # in a document it may stand there as null
    when = f"{config.get('cron')} {config.get('tz', 'UTC')}" if every is None else f"every {every:g} s"
    return when if policy == "latest" else f"{when}, catch up: {policy}"


def _folder_words(config: dict[str, Any]) -> str:
    return f"{config.get('path', '')}/{config.get('pattern', '*')}"


def _redis_words(config: dict[str, Any]) -> str:
    return f"{config.get('key', '')} {config.get('url', '')}"


def _inbox_words(config: dict[str, Any]) -> str:
    schema = config.get("schema")
    return f"of {schema['type']}" if is_object(schema) and isinstance(schema.get("type"), str) else ""


_WORDS = {SCHEDULE: _schedule_words, FOLDER: _folder_words, REDIS_STREAM: _redis_words, INBOX: _inbox_words}


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _short(node_type: str) -> str:
    return node_type.removeprefix("perdure.") if node_type in TRIGGERS else node_type


def _micros(iso: str) -> int:
    return int(datetime.fromisoformat(iso).timestamp() * 1_000_000)
