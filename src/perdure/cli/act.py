"""Commands that tell a run something: `cancel`, `resolve`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import click

from perdure.cli.exits import Exit
from perdure.cli.options import (
    COMMAND_LINE,
    Place,
    awaited,
    imports_option,
    json_option,
    print_json,
    store_option,
    users_output,
)
from perdure.cli.output import read_output
from perdure.cli.plainly import Silence
from perdure.cli.results import verdict
from perdure.cli.running import drive, exit_after
from perdure.cli.stores import require
from perdure.cli.terminal import paper
from perdure.cli.words import plain
from perdure.engine.engine import Engine
from perdure.engine.inspect import find_run, load_run, report_run
from perdure.ids import RunId
from perdure.journal.states import TERMINAL


@click.command("cancel")
@click.argument("run", metavar="RUN")
@click.option("--reason", default="", metavar="TEXT", help="Why, for whoever looks at the run later.")
@store_option
@json_option
@awaited
async def cancel_command(run: str, reason: str, store: Place, as_json: bool) -> int:
    """Stop a run for good. Its running nodes are told to stop; nothing more of it starts.

    RUN is a run's id, or as much of its beginning as no other run has. A run that has ended stays as it is.

    \b
      perdure cancel 0198f2 --reason "wrong input"
    """
    require(store)
    number: int | None = None
    async with Engine(store.url, recover=False) as engine:
        run_id = await find_run(engine.store, run)
        before = (await load_run(engine.store, run_id)).run
        if before.status not in TERMINAL:
            await (await engine.get(run_id)).cancel(reason)
            number = await drive(engine, run_id, Silence(), known=before.last_seq, rested_at=before.last_seq)
        after = (await load_run(engine.store, run_id)).run
        report = await report_run(engine.store, run_id)
    if as_json:
        print_json(report)
    else:
        had_ended = " (it had ended before)" if before.status in TERMINAL else ""
        click.echo(f"run {plain(run_id)} {verdict(after, paper().pen)}{had_ended}")
    return Exit.DONE if number is None else exit_after(number)


@click.command("resolve")
@click.argument("run", metavar="RUN")
@click.argument("node", metavar="NODE")
@click.argument("resolution", metavar="done|retry|fail", type=click.Choice(["done", "retry", "fail"]))
@click.option("--output", metavar="JSON", help="With done: what the node would have returned. Null unless given.")
@imports_option
@store_option
@json_option
def resolve_command(
    run: str,
    node: str,
    resolution: Literal["done", "retry", "fail"],
    output: str | None,
    imports: Sequence[str],
    store: Place,
    as_json: bool,
) -> int:
    """Say what became of a node in doubt: one that must run at most once, and was lost half-way.

    `done` if it had its effect, `retry` if it had none, `fail` to give it up. `perdure resume` then goes on with the run.
    The output is read as what the node returns, if its code is found as `perdure resume` finds it; else it is plain JSON.

    \b
      perdure resolve 0198f2 charge done --output '{"receipt": 17}'
    """
    if output is not None and resolution != "done":
        raise click.UsageError(f"--output goes with done: a node that is told {resolution!r} has no output.")
    require(store)
    with users_output(as_json=as_json):
        value = asyncio.run(read_output(run, node, output, imports, store)) if resolution == "done" else None
        run_id = asyncio.run(_resolve(run, node, resolution, value, store))
    if as_json:
        print_json({"run_id": run_id, "node": node, "resolution": resolution})
    else:
        assumed = ", with null as its output" if resolution == "done" and output is None else ""
        going_on = store.command("resume", run_id)
        click.echo(f"node {plain(node)} of run {plain(run_id)}: {resolution}{assumed}. `{going_on}` goes on.")
    return Exit.DONE


async def _resolve(
    run: str, node: str, resolution: Literal["done", "retry", "fail"], value: Any, place: Place
) -> RunId:
    async with Engine(place.url, workflows=(), recover=False) as engine:  # without workflows it cannot drive the run
        run_id = await find_run(engine.store, run)
        await (await engine.get(run_id)).resolve(node, resolution, output=value, by=COMMAND_LINE)
        return run_id
