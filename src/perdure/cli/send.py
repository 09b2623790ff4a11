"""Commands that bring something to a run: `send` feeds its inputs, `signal` sends it a signal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from perdure.cli.exits import Exit
from perdure.cli.options import Place, json_option, not_empty, print_json, store_option
from perdure.cli.stores import require
from perdure.cli.words import plain
from perdure.engine.driving.waiting import signal_command_id
from perdure.engine.engine import Engine
from perdure.engine.inspect import find_run, living_engines
from perdure.engine.runs.run import Run
from perdure.engine.starting.inputs import check_item, stream_inputs
from perdure.ids import RunId
from perdure.journal.states import TERMINAL, WAITING, WaitStatus


@click.command("send")
@click.argument("run", metavar="RUN")
@click.argument("name", metavar="INPUT")
@click.argument("items", metavar="[ITEM]…", nargs=-1)
@click.option("--id", "item_id", metavar="ID", help="Of the item: the same one twice has no effect. For one item only.")
@click.option("--close", is_flag=True, help="Then say that no more items come.")
@store_option
@json_option
def send_command(
    run: str, name: str, items: tuple[str, ...], item_id: str | None, close: bool, store: Place, as_json: bool
) -> int:
    """Give items to an input of a run that is a stream. They are durable when this ends, and each is processed once.

    An ITEM is read as JSON where that fits the input, and is a text otherwise.

    \b
      perdure send 0198f2 messages "how are you?"
      perdure send 0198f2 messages --close
    """
    if item_id is not None and len(items) != 1:
        raise click.UsageError("--id is for one item.")
    if not items and not close:
        raise click.UsageError("Give at least one item, or --close.")
    require(store)
    run_id = asyncio.run(_send(run, name, items, item_id, close, store))
    if as_json:
        print_json({"run_id": run_id, "input": name, "sent": len(items), "closed": close})
    else:
        told = [f"{len(items)} item{'s' * (len(items) != 1)} sent"] if items else []
        told += ["closed"] if close else []
        click.echo(f"input {plain(name)} of run {plain(run_id)}: {', '.join(told)}")
    return Exit.DONE


@click.command("signal")
@click.argument("run", metavar="RUN")
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="[VALUE]", required=False)
@click.option(
    "--id", "signal_id", metavar="ID", callback=not_empty, help="Of the signal: the same one twice has no effect."
)
@store_option
@json_option
def signal_command(run: str, name: str, value: str | None, signal_id: str | None, store: Place, as_json: bool) -> int:
    """Send a signal to a run. A node that waits for one of this NAME gets it; if none does, it is kept until one does.

    A VALUE is read as JSON if it is some, and is a text otherwise; without one it is null. The signal is durable when this ends.
    It does not drive the run: `perdure resume` does, unless an engine is running.

    \b
      perdure signal 0198f2 paid '{"amount": 12}'
      perdure signal 0198f2 paid 12 --id payment-7
    """
    if not name:
        raise click.UsageError("A signal needs a name.")
    require(store)
    given = None if value is None else _json_or_text(value)
    run_id, is_new, goes_on, others = asyncio.run(_signal(run, name, given, signal_id, store))
    if as_json:
        print_json({"run_id": run_id, "signal": name, "value": given, "sent": is_new})
    else:
        told = f"sent to run {plain(run_id)}"
        told = told if is_new else f"was {told} before; once more changes nothing"
        then = "" if goes_on else f". `{store.command('resume', run_id)}` goes on."
        if others and is_new:
            then = f", and is kept: the run waits for {', '.join(map(plain, others))}"
        click.echo(f"signal {plain(name)} {told}{then}")
    return Exit.DONE


async def _signal(
    run: str, name: str, value: Any, signal_id: str | None, place: Place
) -> tuple[RunId, bool, bool, Sequence[str]]:
    """Send the signal; return to which run, whether it was not sent before, whether nobody has to see to it that the run goes
    on, and the signals for which it waits if this is none of them."""
    async with Engine(place.url, workflows=(), recover=False) as engine:  # without workflows it cannot drive the run
        run_id = await find_run(engine.store, run)
        target: Run[Any] = await engine.get(run_id)
        known = None if signal_id is None else await engine.store.load_command(run_id, signal_command_id(signal_id))
        stored = await target.load()
        open_waits = [wait for wait in stored.waits if wait.status is WaitStatus.OPEN and stored.run.status in WAITING]
        awaited = {wait.signal for wait in open_waits if wait.signal is not None}
        await target.signal(name, value, id=signal_id)
        has_ended = await target.status() in TERMINAL  # so that it has heard the signal before
        goes_on = has_ended or bool(await living_engines(engine.store) - {engine.engine_id})
        return run_id, known is None, goes_on, [] if name in awaited else sorted(awaited)


async def _send(run: str, name: str, items: tuple[str, ...], item_id: str | None, close: bool, place: Place) -> RunId:
    async with Engine(place.url, workflows=(), recover=False) as engine:  # without workflows it cannot drive the run
        run_id = await find_run(engine.store, run)
        target: Run[Any] = await engine.get(run_id)
        schema = stream_inputs(await target.graph()).get(name, {})
        for item in items:
            await target.send(name, read_item(item, schema), item_id=item_id)
        if close:
            await target.close(name)
        return run_id


def read_item(text: str, schema: dict[str, Any]) -> Any:
    """Return the item that a text stands for. Where neither it nor its JSON fits, the JSON makes for the better complaint."""
    value = _json_or_text(text)
    return text if check_item(value, schema) is not None and check_item(text, schema) is None else value


def _json_or_text(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return text
