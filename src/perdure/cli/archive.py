"""`perdure archive`: runs that ended long ago, out of the database into files and back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from perdure.cli.bundle import blobs_option
from perdure.cli.each import (
    Refusals,
    exit_after_each,
    for_each,
    raise_if_alone,
    refusal_documents,
    tell_refusals,
)
from perdure.cli.exits import Exit
from perdure.cli.marks import RUN_MARKS, words_of
from perdure.cli.options import Place, WholeNumber, age, awaited, json_option, print_json, store_option
from perdure.cli.stores import archive_folder, opened
from perdure.cli.terminal import paper
from perdure.cli.words import cells, counted, day_and_time, padded, plain, size
from perdure.clock import SystemClock
from perdure.engine.inspect import iso_time
from perdure.engine.keeping.archives import all_archived, find_archived, restore
from perdure.engine.keeping.archiving import Archiver, Archiving
from perdure.engine.keeping.retention import REST
from perdure.errors import RunNotFound
from perdure.ids import DEFAULT_PROJECT, RunId
from perdure.store.base import Store
from perdure.store.blobs import BlobStore, open_blobs
from perdure.store.opening import default_blobs_url
from perdure.store.shapes import ArchivedRun


@click.command("archive")
@click.option(
    "--older-than",
    callback=age,
    metavar="TIME",
    default="30d",
    show_default=True,
    help="Runs that have ended longer ago than this.",
)
@click.option("--limit", type=WholeNumber(min=1), metavar="N", help="At most so many runs.")
@click.option("--dry-run", is_flag=True, help="Only say how many would go.")
@click.option("--list", "lists", is_flag=True, help="List what is in the archive, newest first.")
@click.option(
    "--restore", "restored", metavar="RUN", multiple=True, help="Bring this run back. May be given several times."
)
@click.option(
    "--archive",
    "folder",
    metavar="FOLDER",
    envvar="PERDURE_ARCHIVE",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the files are. Else PERDURE_ARCHIVE, else beside the database file.",
)
@blobs_option
@store_option
@json_option
@awaited
async def archive_command(
    older_than: timedelta,
    limit: int | None,
    dry_run: bool,
    lists: bool,
    restored: Sequence[str],
    folder: Path | None,
    blobs_url: str | None,
    store: Place,
    as_json: bool,
) -> int:
    """Move runs that ended long ago into compressed files, while others go on. What is archived can be shown where it is.

    A run is in the database or in a file that the database knows of, whenever this is stopped; started again, it goes on. `show`,
    `events`, `logs`, `verify` and `export` read archived runs as if they were there.

    \b
      perdure archive --dry-run
      perdure archive --older-than 90d
      perdure archive --list
      perdure archive --restore 0198f2
    """
    _refuse_what_does_not_go_together(lists=lists, restored=restored, dry_run=dry_run, limit=limit)
    place = folder or archive_folder(store)
    async with opened(store) as source:
        if lists:
            _print_list(await _all(source, limit), as_json=as_json)
            return Exit.DONE
        blobs = open_blobs(blobs_url or default_blobs_url(source.url))
        try:
            if restored:
                back, refused = await for_each(restored, lambda text: _restore(source, blobs, place, text))
                raise_if_alone(restored, refused)
                _print_restored(list(back.values()), refused, as_json=as_json)
                return exit_after_each(refused)
            archiver = Archiver(source, blobs, place, SystemClock(), rest=REST)
            done = await archiver.archive(older_than=older_than, limit=limit, dry_run=dry_run)
        finally:
            await blobs.close()
    _print(done, as_json=as_json)
    return Exit.DONE


def _refuse_what_does_not_go_together(
    *, lists: bool, restored: Sequence[str], dry_run: bool, limit: int | None
) -> None:
    if lists and restored:
        raise click.UsageError("--list and --restore do not go together.")
    instead = "--list" if lists else "--restore" if restored else None
    if instead is None:
        return
    if dry_run:
        raise click.UsageError(f"--dry-run does not go with {instead}: it says what would be archived.")
    if click.get_current_context().get_parameter_source("older_than") is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"--older-than does not go with {instead}: it says what is to be archived.")
    if restored and limit is not None:
        raise click.UsageError("--limit does not go with --restore: all runs that are named come back.")


async def _restore(store: Store, blobs: BlobStore, folder: Path, text: str) -> RunId:
    archived = await find_archived(store, text)
    if archived is None and await store.load_state(RunId(text)) is None:
        raise RunNotFound(text)
    run_id = RunId(text) if archived is None else archived.run_id
    return await restore(store, blobs, folder, run_id, project_id=DEFAULT_PROJECT, clock=SystemClock())


async def _all(store: Store, limit: int | None) -> list[ArchivedRun]:
    found: list[ArchivedRun] = []
    async with aclosing(all_archived(store)) as archived:
        async for run in archived:
            found.append(run)
            if len(found) == limit:
                break
    return found


def _print(done: Archiving, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "folder": done.folder,
                "dry_run": done.is_dry_run,
                "runs": done.runs,
                "files": done.files,
                "size": done.size,
                "skipped": list(done.skipped),
            }
        )
        return
    pen = paper().pen
    if done.is_dry_run:
        click.echo(f"{counted(done.runs, 'run')} would be archived.")
        return
    what = f"{counted(done.files, 'file')}, {size(done.size)}; in {plain(done.folder)}"
    click.echo(f"{pen.good('✓')} {counted(done.runs, 'run')} archived.")
    click.echo(pen.faint(what))
    for run_id in done.skipped:
        click.echo(f"{pen.warning('!')} run {plain(run_id)} cannot be read whole and stays: `perdure verify` says why")


def _print_restored(runs: Sequence[RunId], refused: Refusals, *, as_json: bool) -> None:
    if as_json:
        print_json({"restored": list(runs), "refused": refusal_documents(refused)})
        return
    for run_id in runs:
        click.echo(f"{paper().pen.good('✓')} run {plain(run_id)} is back")
    tell_refusals(refused)


def _print_list(found: Sequence[ArchivedRun], *, as_json: bool) -> None:
    if as_json:
        print_json([_document(archived) for archived in found])
        return
    if not found:
        click.echo("No archived runs.")
        return
    rows = [("RUN", "WORKFLOW", "STATUS", "ENDED", "SIZE"), *map(_row, found)]
    widths = [max(cells(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        line = "  ".join(padded(text, width) for text, width in zip(row, widths, strict=True)).rstrip()
        click.echo(line if number else paper().pen.faint(line))


def _row(archived: ArchivedRun) -> tuple[str, ...]:
    return (
        plain(archived.run_id),
        f"{plain(archived.workflow)} v{archived.version}",
        f"{RUN_MARKS[archived.status][0]} {words_of(archived.status)}",
        day_and_time(archived.ended_at),
        size(archived.size),
    )


def _document(archived: ArchivedRun) -> dict[str, Any]:
    return {
        "run_id": archived.run_id,
        "workflow": archived.workflow,
        "version": archived.version,
        "status": archived.status,
        "created_at": iso_time(archived.created_at),
        "ended_at": iso_time(archived.ended_at),
        "archived_at": iso_time(archived.archived_at),
        "events": archived.last_seq,
        "file": archived.file,
        "size": archived.size,
        "digest": archived.digest,
    }
