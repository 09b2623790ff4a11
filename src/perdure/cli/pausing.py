"""The command that pauses runs, and how many runs at once are paused or told to go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

from perdure.cli.exits import Exit
from perdure.cli.options import Place, Seconds, json_option, print_json, store_option
from perdure.cli.results import verdict
from perdure.cli.stores import require
from perdure.cli.terminal import paper
from perdure.cli.words import counted, plain
from perdure.engine.driving.sending import PAUSE, RESUME
from perdure.engine.engine import Engine
from perdure.engine.inspect import find_run, living_engines, load_run, report_run
from perdure.engine.runs.telling import stays_paused
from perdure.ids import RunId
from perdure.journal.states import LIVE, TERMINAL, RunState, RunStatus
from perdure.store.shapes import StoredRun

NEWS_SECONDS = 0.5
"""How often to look whether a run is paused."""

_LIVE = [status.value for status in RunStatus if status in LIVE]

F = TypeVar("F", bound=Callable[..., Any])


class Many(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs are meant, where it is not one by its id."""

    workflow: str | None
    status: Sequence[str]

    def in_words(self, what: str) -> str:
        """Return `No run of workflow digest is running.`, or the like: nothing was found."""
        whose = f" of workflow {plain(self.workflow)}" if self.workflow is not None else ""
        how = f" is {' or '.join(self.status).replace('_', ' ')}" if self.status else f" is to be {what}"
        return f"No run{whose}{how}."


def many_options(command: F) -> F:
    """`--all`, `--workflow NAME` and `--status STATUS`."""
    for option in (
        click.option(
            "--status", multiple=True, type=click.Choice(_LIVE), metavar="STATUS",
            help="Every run in this status. May be given several times."),
        click.option("--workflow", metavar="NAME", help="Every run of this workflow."),
        click.option("--all", "every", is_flag=True, help="Every run."),
    ):  # fmt: skip
        command = option(command)
    return command


def chosen(run: str | None, *, every: bool, workflow: str | None, status: Sequence[str]) -> Many | None:
    """Return which runs are meant; None if it is the one that was named. Raises click.UsageError if that is not clear."""
    is_many = every or workflow is not None or bool(status)
    if run is not None and is_many:
        raise click.UsageError("Give a RUN, or say which runs with --all, --workflow or --status; not both.")
    if run is None and not is_many:
        raise click.UsageError("Give a RUN, or say which runs: --all, --workflow or --status.")
    return Many(workflow=workflow, status=status) if is_many else None


@click.command("pause")
@click.argument("run", metavar="[RUN]", required=False)
@many_options
@click.option("--grace", type=Seconds(min=0), metavar="SECONDS",
              help="How long running nodes may go on: 10 seconds unless the run was started otherwise.")  # fmt: skip
@click.option("--now", is_flag=True, help="Stop running nodes at once. They run again when the run is resumed.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for whoever looks at the run later.")
@store_option
@json_option
def pause_command(
    run: str | None,
    every: bool,
    workflow: str | None,
    status: Sequence[str],
    grace: float | None,
    now: bool,
    reason: str,
    store: Place,
    as_json: bool,
) -> int:
    """Pause a run, or many: nothing more of it starts until `perdure resume`.

    RUN is a run's id, or as much of its beginning as no other run has. Nodes that run may end within the grace period, and
    what they come to counts; after it they are stopped, and run again when the run is resumed. A run that has ended stays as
    it is. This waits until the one run is paused, and only tells many.

    \b
      perdure pause 0198f2 --reason "the printer is broken"
      perdure pause --workflow digest --now
      perdure pause --all
    """
    if now and grace is not None:
        raise click.UsageError("Give --grace or --now, not both.")
    which = chosen(run, every=every, workflow=workflow, status=status)
    require(store)
    grace = 0.0 if now else grace
    if which is None:
        return asyncio.run(_pause(run or "", reason, grace, store, as_json=as_json))
    return _tell_many(asyncio.run(_pause_many(which, reason, grace, store)), "paused", which, as_json=as_json)


def resume_many(which: Many, reason: str, place: Place, *, as_json: bool) -> int:
    """Tell runs to go on, and return the exit code."""
    require(place)
    return _tell_many(asyncio.run(_resume_many(which, reason, place)), "resumed", which, as_json=as_json)


async def _pause(text: str, reason: str, grace: float | None, place: Place, *, as_json: bool) -> int:
    async with _teller(place) as engine:
        run_id = await find_run(engine.store, text)
        before = (await load_run(engine.store, run_id)).run
        is_paused = before.status is RunStatus.PAUSED and await stays_paused(engine.store, run_id)
        if before.status not in TERMINAL and not is_paused:
            await (await engine.get(run_id)).pause(reason, grace=grace)
        after, is_driven = await _once_paused(engine, run_id)
        report = await report_run(engine.store, run_id)
    if as_json:
        print_json(report)
    else:
        click.echo(f"run {plain(run_id)} {_paused_words(before, after, is_driven=is_driven)}")
    return Exit.DONE


async def _once_paused(engine: Engine, run_id: RunId) -> tuple[StoredRun, bool]:
    """Wait until the run is paused, has ended, or turns out to be driven by nobody; return it, and whether somebody does."""
    while True:
        stored = await load_run(engine.store, run_id)
        is_driven = stored.owner is not None and stored.owner in await living_engines(engine.store)
        if stored.run.status in TERMINAL or _rests_paused(stored) or not is_driven:
            return stored, is_driven
        await engine.store.wait_for_news(NEWS_SECONDS)


def _rests_paused(stored: StoredRun) -> bool:
    """Whether the run is paused, and nobody has yet to hear that it is to go on, or to be paused again after that."""
    is_told = any(command.kind in (PAUSE, RESUME) for command in stored.commands)
    return stored.run.status is RunStatus.PAUSED and not is_told


def _paused_words(before: RunState, after: StoredRun, *, is_driven: bool) -> str:
    told = verdict(after.run, paper().pen)
    if before.status in TERMINAL:
        return f"{told} (it had ended before)"
    if after.run.status in TERMINAL or _rests_paused(after) or is_driven:
        return told
    if after.run.status is RunStatus.PAUSED:
        return f"{told}. It was told to go on before; whoever takes that up will pause it again."
    return f"{told}. No engine drives it; whoever takes it up will pause it before anything else."


async def _pause_many(which: Many, reason: str, grace: float | None, place: Place) -> Sequence[RunId]:
    async with _teller(place) as engine:
        return await engine.pause(workflow=which.workflow, status=which.status or None, reason=reason, grace=grace)


async def _resume_many(which: Many, reason: str, place: Place) -> Sequence[RunId]:
    async with _teller(place) as engine:
        return await engine.resume(workflow=which.workflow, status=which.status or None, reason=reason)


def _teller(place: Place) -> Engine:
    """Return an engine that can tell runs something, and drive none: it has no workflows."""
    return Engine(place.url, workflows=(), recover=False)


def _tell_many(run_ids: Sequence[RunId], what: str, which: Many, *, as_json: bool) -> int:
    if as_json:
        print_json({"runs": list(run_ids), "told": "pause" if what == "paused" else "resume"})
    elif not run_ids:
        click.echo(which.in_words(what))
    else:
        click.echo(f"{counted(len(run_ids), 'run')} told to be {what}:")
        for run_id in run_ids:
            click.echo(f"  {plain(run_id)}")
    return Exit.DONE
