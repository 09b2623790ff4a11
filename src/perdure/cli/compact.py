"""`perdure compact`: makes long logs take less room."""

from __future__ import annotations

from collections.abc import Sequence

import click

from perdure.cli.each import Refusals, exit_after_each, for_each, raise_if_alone, refusal_documents, tell_refusals
from perdure.cli.options import Place, WholeNumber, awaited, json_option, print_json, store_option
from perdure.cli.stores import opened
from perdure.cli.terminal import paper
from perdure.cli.words import counted
from perdure.engine.inspect import find_run
from perdure.engine.keeping.compacting import (
    EVENTS_PER_SEGMENT,
    KEPT_EVENTS,
    LONG_EVENTS,
    Compaction,
    compact_long_logs,
    compact_run,
)
from perdure.ids import RunId
from perdure.store.base import Store


@click.command("compact")
@click.argument("run_ids", metavar="[RUN]...", nargs=-1)
@click.option(
    "--longer-than",
    type=WholeNumber(min=KEPT_EVENTS + EVENTS_PER_SEGMENT),
    metavar="EVENTS",
    help=f"Without RUN: only logs with more events than this that are rows.  [default: {LONG_EVENTS}]",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@store_option
@json_option
@awaited
async def compact_command(
    run_ids: tuple[str, ...], longer_than: int | None, dry_run: bool, store: Place, as_json: bool
) -> int:
    """Make long logs take less room: many events to a row, compressed.

    Nothing is lost. The log reads as before, and so does everything that is made of it: `events`, `show --at`, `diff`, `verify`.
    The newest thousand events of a run stay as they are. It may be in motion meanwhile, and the command can be broken off at any
    time: what is done is done. If one of several is refused, the others are made compact all the same.

    \b
      perdure compact --dry-run
      perdure compact my-run
    """
    if run_ids and longer_than is not None:
        raise click.UsageError("--longer-than is for all runs: leave it away where runs are named.")
    async with opened(store) as source:
        done, refused = await _compact(source, run_ids, longer_than or LONG_EVENTS, dry_run=dry_run)
    if as_json:
        document = {"dry_run": done.is_dry_run, "runs": done.runs, "events": done.events}
        print_json(document | {"refused": refusal_documents(refused)})
    else:
        what = f"{counted(done.events, 'event')} of {counted(done.runs, 'run')}"
        click.echo(f"{what} would be made compact." if dry_run else f"{paper().pen.good('✓')} {what} made compact.")
        tell_refusals(refused)
    return exit_after_each(refused)


async def _compact(
    store: Store, run_ids: Sequence[str], longer_than: int, *, dry_run: bool
) -> tuple[Compaction, Refusals]:
    if not run_ids:
        return await compact_long_logs(store, longer_than=longer_than, dry_run=dry_run), {}
    found, unknown = await for_each(run_ids, lambda text: find_run(store, text))
    done, left = await for_each(list(found.values()), lambda run_id: compact_run(store, RunId(run_id), dry_run=dry_run))
    refused = unknown | left
    raise_if_alone(run_ids, refused)
    runs, events = sum(each.runs for each in done.values()), sum(each.events for each in done.values())
    return Compaction(is_dry_run=dry_run, runs=runs, events=events), refused
