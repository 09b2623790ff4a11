"""The command that names places in the log of a run, and lists the names: `checkpoint`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

import click

from perdure.cli.exits import Exit
from perdure.cli.options import Place, json_option, print_json, store_option
from perdure.cli.stores import opened, require
from perdure.cli.terminal import Paper, paper
from perdure.cli.words import cells, padded, plain
from perdure.engine.engine import Engine
from perdure.engine.inspect import find_run, living_engines, load_run
from perdure.engine.runs.checkpoints import Checkpoint, load_checkpoints
from perdure.errors import CheckpointPending
from perdure.ids import RunId
from perdure.journal.checkpoints import name_problem
from perdure.journal.states import MOVING

NEWS_SECONDS = 1.0
"""How often to look whether somebody still drives the run, while its checkpoint is waited for."""
LOOKS_AT_REST = 10
"""How often to look for one of a run that rests, which is taken up here."""


def _checked(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and (problem := name_problem(value)) is not None:
        raise click.BadParameter(f"{problem}.", ctx, parameter)
    return value


@click.command("checkpoint")
@click.argument("run", metavar="RUN")
@click.argument("name", metavar="[NAME]", required=False, callback=_checked)
@store_option
@json_option
def checkpoint_command(run: str, name: str | None, store: Place, as_json: bool) -> int:
    """Give the place where a run is a NAME; without one, list the names that it has, oldest first.

    RUN is a run's id, or as much of its beginning as no other run has. Whatever was recorded before belongs to the checkpoint.
    A run that rests goes on resting. A name is given once and stays where it is. This needs none of the run's code; if nobody
    drives a run that should move, whoever takes it up saves the checkpoint first.

    \b
      perdure checkpoint 0198f2 before-review
      perdure checkpoint 0198f2
    """
    if name is None:
        return asyncio.run(_list(run, store, as_json=as_json))
    require(store)
    run_id, saved = asyncio.run(_save(run, name, store))
    if as_json:
        print_json({"run_id": run_id, "name": name, "saved": saved})
    else:
        click.echo(f"checkpoint {plain(name)} of run {plain(run_id)} {_words(saved)}")
    return Exit.DONE


async def _save(text: str, name: str, place: Place) -> tuple[RunId, Checkpoint | None]:
    """Ask for the checkpoint and wait until it is saved. None if nobody drives the run who could save it."""
    async with Engine(
        place.url, workflows=(), recover=False
    ) as engine:  # without workflows it drives only what rests on
        run_id = await find_run(engine.store, text)
        handle = await engine.get(run_id)
        command_id = engine.chance.new_id()
        for look in count():
            is_tended = await _is_tended(engine, run_id, look)
            try:
                seconds = NEWS_SECONDS if is_tended else 0.0
                return run_id, await handle.checkpoint(name, timeout=seconds, command_id=command_id)
            except CheckpointPending:
                if not is_tended:
                    break
        return run_id, None


async def _is_tended(engine: Engine, run_id: RunId, look: int) -> bool:
    """Whether somebody drives the run, or it rests, so that it can be taken up here."""
    stored = await load_run(engine.store, run_id)
    if stored.owner is not None and stored.owner in await living_engines(engine.store):
        return True
    return stored.run.status not in MOVING and look < LOOKS_AT_REST


def _words(saved: Checkpoint | None) -> str:
    if saved is None:
        return "is asked for. No engine drives it; whoever takes it up will save it before anything else."
    return f"saved: it holds everything up to event {saved.seq}"


async def _list(text: str, place: Place, *, as_json: bool) -> int:
    async with opened(place) as store:
        run_id = await find_run(store, text)
        found = await load_checkpoints(store, run_id)
    if as_json:
        print_json(found)
    elif not found:
        click.echo(f"Run {plain(run_id)} has no checkpoints.")
    else:
        _print(found, paper())
    return Exit.DONE


def _print(found: Sequence[Checkpoint], sheet: Paper) -> None:
    rows = [(plain(saved.name), str(saved.seq), f"{saved.at.astimezone():%Y-%m-%d %H:%M:%S}") for saved in found]
    width = max(cells(name) for name, *_ in (("CHECKPOINT",), *rows))
    most = max(len("EVENT"), *(len(seq) for _, seq, _ in rows))
    click.echo(sheet.pen.faint(f"{padded('CHECKPOINT', width)}  {'EVENT':>{most}}  SAVED"))
    for name, seq, at in rows:
        click.echo(f"{padded(name, width)}  {seq:>{most}}  {sheet.pen.faint(at)}")
