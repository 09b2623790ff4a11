"""`perdure delete`: the values of runs that have ended."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from perdure.cli.bundle import blobs_option
from perdure.cli.each import exit_after_each, for_each, raise_if_alone, refusal_documents, tell_refusals
from perdure.cli.exits import Exit
from perdure.cli.options import COMMAND_LINE, Place, awaited, json_option, print_json, store_option
from perdure.cli.stores import opened
from perdure.cli.terminal import paper
from perdure.cli.words import counted, plain
from perdure.clock import SystemClock
from perdure.engine.inspect import find_run
from perdure.engine.keeping.deleting import delete_run
from perdure.ids import RunId
from perdure.store.blobs import open_blobs
from perdure.store.opening import default_blobs_url


@click.command("delete")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--reason", metavar="TEXT", default="", help="Why; it is recorded.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@blobs_option
@store_option
@json_option
@awaited
async def delete_command(
    runs: Sequence[str], reason: str, yes: bool, blobs_url: str | None, store: Place, as_json: bool
) -> int:
    """Delete the values of runs that have ended: what they were given, what their nodes gave, what they were told and asked.

    RUN is a run's id, or as much of its beginning as no other run has. What happened stays, without the values, and so does the
    id. This cannot be undone. Twice is as good as once. If one of several is refused, the others are deleted all the same.

    \b
      perdure delete 0198f2
      perdure delete 0198f2 0198f7 --yes --reason "asked for by the customer"
    """

    async def delete(run_id: str) -> bool:
        return await delete_run(source, blobs, RunId(run_id), by=COMMAND_LINE, reason=reason, clock=SystemClock())

    async with opened(store) as source:
        found, unknown = await for_each(runs, lambda run: find_run(source, run))
        raise_if_alone(runs, unknown)
        if not yes and as_json:
            raise click.UsageError("With --json nobody is asked: say --yes.")
        if found and not yes and not _is_wanted(list(found.values())):
            click.echo("Nothing was deleted.", err=True)
            return Exit.FAILED
        blobs = open_blobs(blobs_url or default_blobs_url(source.url))
        try:
            deleted, not_deleted = await for_each(list(found.values()), delete)
        finally:
            await blobs.close()
    raise_if_alone(runs, not_deleted)
    refused = unknown | not_deleted
    if as_json:
        done = [{"run_id": run_id, "deleted": is_new} for run_id, is_new in deleted.items()]
        print_json([*done, *refusal_documents(refused)])
    else:
        for run_id, is_new in deleted.items():
            told = f"{paper().pen.good('✓')} the values of run {plain(run_id)} are deleted"
            click.echo(told if is_new else f"the values of run {plain(run_id)} were deleted before")
        tell_refusals(refused)
    return exit_after_each(refused)


def _is_wanted(runs: Sequence[RunId]) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("There is nobody to ask: say --yes.")
    return click.confirm(f"Delete the values of {counted(len(runs), 'run')} for good?")
