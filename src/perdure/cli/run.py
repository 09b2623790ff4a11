"""Commands that make runs move: `run` and `resume`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import msgspec

from perdure.cli.given import read_inputs, value_of
from perdure.cli.options import (
    COMMAND_LINE,
    Place,
    Seconds,
    imports_option,
    json_option,
    new_run_id,
    print_json,
    stay_option,
    store_option,
    users_output,
)
from perdure.cli.pausing import chosen, many_options, resume_many
from perdure.cli.plainly import Lines, Silence, say
from perdure.cli.program import Program, load_program, load_types_of, require_valid
from perdure.cli.results import exit_of, final_word, next_steps, outcome
from perdure.cli.running import drive, exit_after
from perdure.cli.saved import is_saved, load_saved, on_version
from perdure.cli.stores import opened, require
from perdure.cli.terminal import Paper, paper
from perdure.cli.waits import NOTHING, Awaited, what_is_awaited
from perdure.cli.watch import Display
from perdure.cli.words import plain
from perdure.engine.engine import Engine
from perdure.engine.inspect import RunReport, find_run, load_graph, load_run, report_run
from perdure.engine.owning.leases import is_alive
from perdure.errors import JournalDamaged, StoreDamaged, TypesChanged, ValuesDeleted
from perdure.graph.declare import declared_types
from perdure.graph.model import Graph
from perdure.graph.source import closure_of
from perdure.graph.validate import validate
from perdure.ids import RunId, new_id
from perdure.journal.deletion import DELETED
from perdure.journal.events import Durability, Journal, OnFailure
from perdure.journal.resting import IN_DOUBT
from perdure.journal.states import MOVING, TERMINAL, RunState, RunStatus
from perdure.store.opening import is_there
from perdure.store.shapes import StoredRun

_HELD_UP = (RunStatus.PAUSING, RunStatus.PAUSED, RunStatus.QUARANTINED)


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What `run` was asked for."""

    program: Program
    saved: str | None
    """The name of what was saved, if the program is that."""
    inputs: Mapping[str, Any]
    run_id: str | None
    durability: Durability | None
    on_failure: OnFailure | None
    timeout: float | None
    checkpoint_every: float | None
    journal: Journal


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a run was left."""

    run: RunState
    report: RunReport
    awaited: Awaited
    signal: int | None
    """What made us leave it before it had ended, if something did."""
    is_elsewhere: bool
    """Whether it is left to another process, which drives it."""
    had_ended: bool
    """Whether it had ended before anything was asked of it."""


@click.command("run")
@click.argument("target", metavar="FILE[:WORKFLOW]|NAME@VERSION")
@click.option("--input", "-i", "pairs", multiple=True, metavar="NAME=VALUE", help="An input; VALUE is JSON or text.")
@click.option("--inputs", "file", metavar="FILE", help="A JSON object with inputs; - reads standard input.")
@click.option("--run-id", metavar="ID", callback=new_run_id, help="Name the run. Starting it again goes on with it.")
@click.option("--durability", type=click.Choice(["sync", "async", "exit"]), help="How soon progress is on disk.")
@click.option(
    "--on-failure", type=click.Choice(["stop", "finish"]), help="Stop at once, or finish what is independent."
)
@click.option("--timeout", type=Seconds(min=0, min_open=True), metavar="SECONDS", help="For the whole run.")
@click.option("--checkpoint-every", type=Seconds(min=0, min_open=True), metavar="SECONDS",
              help="Save a checkpoint so often, if something has happened, and when the run comes to rest.")  # fmt: skip
@click.option("--journal", type=click.Choice(["log", "audit"]), default="log", show_default=True,
              help="With audit, the tables alone are what is recorded, and the log is written on the side.")  # fmt: skip
@stay_option
@imports_option
@store_option
@json_option
def run_command(
    target: str,
    pairs: Sequence[str],
    file: str | None,
    run_id: str | None,
    durability: Durability | None,
    on_failure: OnFailure | None,
    timeout: float | None,
    checkpoint_every: float | None,
    journal: Journal,
    stay: bool,
    imports: Sequence[str],
    store: Place,
    as_json: bool,
) -> int:
    """Run a workflow to its end and print its result.

    FILE is a Python file, a module (package.module), or a graph in JSON or YAML whose node types come from --import. What was
    run or saved before can be named instead, with the number of a version or with an alias: `perdure versions` lists them.
    Everything is recorded: whatever stops the process, starting the same --run-id again, or `perdure resume`, goes on
    where it stopped. A run that has failed stays so until `perdure retry` or `perdure jump` goes on with it.

    A run that waits for a person or a signal is left, and can be continued when that has come; with --stay it is driven on.

    \b
      perdure run flow.py --input name=Ada
      perdure run flow.py:digest --inputs in.json --run-id digest-1
      perdure run graph.yaml --import nodes.py
      perdure run digest@stable --inputs in.json
    """
    with users_output(as_json=as_json):
        saved = target if is_saved(target) else None
        if saved is None:
            program = load_program(target, imports)
            require_valid(program)  # before the store is opened: what cannot run leaves nothing behind
        else:
            run_id = run_id or new_id()  # which decides what an alias means
            program = asyncio.run(load_saved(saved, run_id, imports, store))
        wish = Wish(
            program=program,
            saved=saved,
            inputs=read_inputs(program, pairs, file),
            run_id=run_id,
            durability=durability,
            on_failure=on_failure,
            timeout=timeout,
            checkpoint_every=checkpoint_every,
            journal=journal,
        )
        ended = asyncio.run(_start(wish, store, stay=stay, as_json=as_json))
    return conclude(ended, store, as_json=as_json)


@click.command("resume")
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--node", metavar="NODE", help="Let this node go on from `ctx.suspend`.")
@click.option("--value", metavar="JSON", help="With --node: what `ctx.suspend` returns. Null if nothing is said.")
@stay_option
@many_options
@click.option("--reason", default="", metavar="TEXT", help="Why, for whoever looks at the log later.")
@imports_option
@store_option
@json_option
def resume_command(
    run: str | None,
    node: str | None,
    value: str | None,
    stay: bool,
    every: bool,
    workflow: str | None,
    status: Sequence[str],
    reason: str,
    imports: Sequence[str],
    store: Place,
    as_json: bool,
) -> int:
    """Go on with a run that was interrupted, that was paused or that rests, and print its result.

    RUN is a run's id, or as much of its beginning as no other run has. The graph that it was started with is taken
    from the store; the code of its nodes from where it was then, if that is below the current folder, or from --import.

    With --all, --workflow or --status, runs that were paused are told to go on, and engines that run take them up. Nothing
    is driven here.

    \b
      perdure resume 0198f2
      perdure resume 0198f2 --import moved/flow.py
      perdure resume 0198f2 --node review --value '{"ok": true}'
      perdure resume --all
    """
    which = chosen(run, every=every, workflow=workflow, status=status)
    if which is not None:
        if node is not None or value is not None or stay:
            raise click.UsageError("--node, --value and --stay are for one run.")
        return resume_many(which, reason, store, as_json=as_json)
    if value is not None and node is None:
        raise click.UsageError("--value needs --node: it is what `ctx.suspend` returns there.")
    goes_on = None if node is None else (node, value_of("--value", value))
    with users_output(as_json=as_json):
        run_id = asyncio.run(prepare(run or "", imports, store))
        ended = asyncio.run(_resume(run_id, store, goes_on, reason, stay=stay, as_json=as_json))
    return conclude(ended, store, as_json=as_json)


async def _start(wish: Wish, place: Place, *, stay: bool, as_json: bool) -> Ended:
    async with Engine(place.url, recover=False, journal=wish.journal) as engine:
        before = None if wish.run_id is None else await engine.store.load_state(RunId(wish.run_id))
        run = await engine.start(
            wish.saved or wish.program,
            run_id=wish.run_id,
            inputs=wish.inputs,
            durability=wish.durability,
            on_failure=wish.on_failure,
            timeout=wish.timeout,
            checkpoint_every=wish.checkpoint_every,
        )
        wished = {"durability": wish.durability, "on_failure": wish.on_failure, "timeout_seconds": wish.timeout}
        wished["checkpoint_every_seconds"] = wish.checkpoint_every
        given = {name: value for name, value in wished.items() if value is not None}
        if before is not None:
            warn_of_kept_settings(before, place, **given)
        is_new = before is None or engine.driver_of(run.run_id) is not None
        known = 0 if is_new else (await run.load()).run.last_seq
        return await attend(engine, run.run_id, place, before, as_json=as_json, known=known, stay=stay)


def warn_of_kept_settings(there: RunState, place: Place, **wished: Any) -> None:
    """Say which settings a run has not been given, because it is there and keeps those that it was started with."""
    for name, value in wished.items():
        kept = getattr(there.settings, name)
        if value == kept:
            continue
        option = "--" + name.removesuffix("_seconds").replace("_", "-")
        told = "none" if kept is None else f"{kept:g}" if isinstance(kept, float | int) else kept
        remedy = ""
        if name == "timeout_seconds":
            fork = place.command("fork", there.run_id, option, "SECONDS")
            remedy = f" `{fork}` begins another run with what this one has done."
        click.echo(
            f"perdure: run {plain(there.run_id)} is there and keeps the settings that it was started with: "
            f"{option} stays {told}.{remedy}",
            err=True,
        )


async def prepare(
    text: str, imports: Sequence[str], place: Place, *, reopens: bool = False, version: str | None = None
) -> RunId:
    """Find the run and load the code of its nodes, before anything is driven; with `reopens`, also of one that has ended. With a
    `version`, the code is that of the version which it is to follow."""
    async with opened(place) as store:
        run_id = await find_run(store, text)
        run = (await load_run(store, run_id)).run
        if version is None:
            graph = await load_graph(store, run)
        else:
            run, graph = await on_version(run, version, store)
    if run.status not in TERMINAL or reopens:
        if graph is None:
            run, graph = await _with_another_version(run, place)
        load_types_of(run, graph, imports)
        _require_fit(run, graph)
        _warn_of_closures(graph)
    return run_id


async def _with_another_version(run: RunState, place: Place) -> tuple[RunState, Graph]:
    """Return a run whose version is gone, with one with which it can go on."""
    async with Engine(place.url, workflows=(), recover=False) as engine:
        await engine.doctor(run.run_id, fix=True)
        mended = (await load_run(engine.store, run.run_id)).run
        graph = await load_graph(engine.store, mended)
    if graph is None:
        raise JournalDamaged(run.run_id, f"version {run.version} of workflow {run.workflow!r} cannot be read")
    return mended, graph


def _warn_of_closures(graph: Graph) -> None:
    """Say which node types take values from around them: they may have been others when the run was started."""
    for name in sorted({node.type for node in graph.nodes} & declared_types().keys()):
        if names := closure_of(declared_types()[name].fn):
            click.echo(
                f"perdure: node type {plain(name)} is declared inside a function and uses {', '.join(names)} from there. "
                "Here these are what the last call of that function made them, whatever they were when the run was "
                "started. Make them inputs of the node, so that they are recorded.",
                err=True,
            )


def _require_fit(run: RunState, graph: Graph) -> None:
    if faults := validate(graph, declared_types()):
        raise TypesChanged(run.run_id, run.workflow, run.version, faults)


async def _resume(
    run_id: RunId, place: Place, goes_on: tuple[str, Any] | None, reason: str, *, stay: bool, as_json: bool
) -> Ended:
    """Let the run go on, or a node of it that was suspended, and keep to it."""
    require(place)
    async with Engine(place.url, recover=False) as engine:
        stored = await load_run(engine.store, run_id)
        run = stored.run
        handle = await engine.get(run_id)
        rested_at = -1
        if goes_on is not None:
            await handle.resume(*goes_on, by=COMMAND_LINE)
        elif _needs_a_word(stored):
            rested_at = run.last_seq
            await handle.resume(reason=reason)
        return await attend(
            engine, run_id, place, run, as_json=as_json, known=run.last_seq, rested_at=rested_at, stay=stay
        )


def _needs_a_word(stored: StoredRun) -> bool:
    """Whether the run goes on only if somebody says so: nothing that could come by itself lets it."""
    run = stored.run
    is_in_doubt = run.status is RunStatus.SUSPENDED and run.reason.startswith(IN_DOUBT)
    is_to_be_paused = any(command.kind == "pause" for command in stored.commands)
    return is_in_doubt or is_to_be_paused or run.status in _HELD_UP


async def attend(
    engine: Engine,
    run_id: RunId,
    place: Place,
    before: RunState | None,
    *,
    as_json: bool,
    known: int,
    rested_at: int = -1,
    stay: bool,
) -> Ended:
    """Keep to the run until it is left, and say how. `before` is what it was before this command."""
    stored = await load_run(engine.store, run_id)
    run = stored.run
    signal: int | None = None
    if run.status not in TERMINAL or known < run.last_seq:  # else there is nothing to be seen
        is_watched = await _is_elsewhere(engine, stored)
        display = _display(run, place, as_json=as_json, is_watched=is_watched)

        def give_up(is_elsewhere: bool) -> None:
            if as_json:
                return
            # Of a store that is gone there is nothing to go on with. What has become of it is said on standard error.
            is_lost = isinstance(sys.exc_info()[1], StoreDamaged) or not is_there(place.url)
            lines = ("stopped",) if is_lost else _left(run, place, paper(), is_elsewhere=is_elsewhere)
            for line in lines:
                say(line)

        try:
            signal = await drive(engine, run_id, display, known=known, rested_at=rested_at, stays=stay, give_up=give_up)
        finally:
            display.close()
    stored = await load_run(engine.store, run_id)
    if DELETED in (stored.run.outputs or {}).values():
        raise ValuesDeleted(run_id)
    return Ended(
        run=stored.run,
        awaited=await what_is_awaited(engine.store, stored),
        report=await report_run(engine.store, run_id),
        signal=signal,
        is_elsewhere=await _is_elsewhere(engine, stored),
        had_ended=before is not None and before.status in TERMINAL,
    )


async def _is_elsewhere(engine: Engine, stored: StoredRun) -> bool:
    is_anothers = stored.run.status in MOVING and stored.owner not in (None, engine.engine_id)
    return is_anothers and await is_alive(engine.store, stored.owner)


def _display(run: RunState, place: Place, *, as_json: bool, is_watched: bool) -> Display:
    if as_json:
        return Silence()
    if paper().is_live:
        # Loaded here because it takes as long as all the rest.
        from perdure.cli.live import Picture

        return Picture(place=place)
    watching = ", driven by another process, watched here" if is_watched else ""
    return Lines(place=place, head=f"run {run.run_id} of {run.workflow}, version {run.version}{watching}")


def conclude(ended: Ended, place: Place, *, as_json: bool) -> int:
    """Print what became of the run, and return the exit code."""
    if as_json:
        print_json(ended.report)
    else:
        _tell(ended, place, paper())
    return exit_of(ended.run.status) if ended.signal is None else exit_after(ended.signal)


def _tell(ended: Ended, place: Place, sheet: Paper) -> None:
    stopped = ended.signal is not None
    lines = (
        _left(ended.run, place, sheet, ended.awaited, is_elsewhere=ended.is_elsewhere)
        if stopped
        else outcome(ended.run, place, sheet, ended.awaited)
    )
    for line in lines:
        say(line)
    if ended.had_ended and ended.run.status is not RunStatus.COMPLETED:
        say(sheet.pen.warning(final_word(ended.run)))


def _left(
    run: RunState, place: Place, sheet: Paper, awaited: Awaited = NOTHING, *, is_elsewhere: bool = False
) -> Iterator[str]:
    told = (
        "watched no longer; run {} goes on in another process" if is_elsewhere else "stopped; run {} is kept as it is"
    )
    yield sheet.pen.warning(told.format(run.run_id))
    yield from next_steps(run, place, sheet.pen, awaited, is_driven=is_elsewhere)
