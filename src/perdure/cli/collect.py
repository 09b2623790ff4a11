"""`perdure gc`: removes blobs that no run refers to."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from perdure.cli.exits import Exit
from perdure.cli.options import Place, age, awaited, json_option, print_json, store_option
from perdure.cli.stores import opened
from perdure.cli.terminal import Pen, paper
from perdure.cli.words import counted, plain, size
from perdure.clock import SystemClock
from perdure.engine.keeping.collecting import Collection, collect_blobs
from perdure.store.base import Store
from perdure.store.blobs import BlobStore, open_blobs
from perdure.store.opening import default_blobs_url


@click.command("gc")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option(
    "--older-than",
    callback=age,
    metavar="TIME",
    default="7d",
    show_default=True,
    help="Leave blobs alone that were written more recently: what writes them may not have come to recording that.",
)
@click.option("--blobs", "blobs_url", metavar="URL", help="Where the blobs are, if the engines were told so.")
@click.option("--force", is_flag=True, help="Also where this store refers to none of the blobs.")
@store_option
@json_option
@awaited
async def gc_command(
    dry_run: bool, older_than: timedelta, blobs_url: str | None, force: bool, store: Place, as_json: bool
) -> int:
    """Remove blobs that no run refers to: what attempts have written that then failed or were lost.

    What any run refers to stays, whether it moves, rests or has ended. Several databases must not share one place for blobs:
    to one of them, the blobs of the others are garbage.

    \b
      perdure gc --dry-run
      perdure gc --older-than 30d
    """
    async with opened(store) as source:
        blobs = open_blobs(blobs_url or default_blobs_url(source.url))
        try:
            found = await _collect(source, blobs, older_than, dry_run=dry_run, force=force)
        finally:
            await blobs.close()
    if as_json:
        print_json(_document(found))
    else:
        _print(found, paper().pen)
    return Exit.DONE


async def _collect(store: Store, blobs: BlobStore, older_than: timedelta, *, dry_run: bool, force: bool) -> Collection:
    if older_than < blobs.least_grace:
        raise click.UsageError(
            f"--older-than is too short: blobs in {blobs.place} may be collected after {blobs.least_grace} at the earliest."
        )
    clock = SystemClock()
    planned = await collect_blobs(store, blobs, older_than=older_than, dry_run=True, clock=clock)
    if dry_run:
        return planned
    if planned.collected and not planned.used and not force:
        raise click.UsageError(
            f"None of the blobs in {blobs.place} is used by a run of this store: they may well be another one's. "
            "Name the place of this store's blobs with --blobs, or say --force."
        )
    return await collect_blobs(store, blobs, older_than=older_than, dry_run=False, clock=clock)


def _document(found: Collection) -> dict[str, Any]:
    return {
        "place": found.place,
        "dry_run": found.is_dry_run,
        "used": found.used,
        "young": found.young,
        "collected": found.collected,
        "collected_bytes": found.collected_bytes,
    }


def _print(found: Collection, pen: Pen) -> None:
    what = f"{counted(found.collected, 'blob')}, {size(found.collected_bytes)}"
    click.echo(f"{what} would be removed." if found.is_dry_run else f"{pen.good('✓')} {what} removed.")
    rest = f"{found.used} in use, {found.young} too young; in {plain(found.place)}"
    click.echo(pen.faint(rest))
