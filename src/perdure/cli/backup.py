"""`perdure backup`: a copy of a store, while runs go on."""

from __future__ import annotations

import os
from pathlib import Path

import click

from perdure.cli.bundle import blobs_option
from perdure.cli.exits import Exit
from perdure.cli.options import Place, awaited, json_option, print_json, store_option
from perdure.cli.stores import archive_folder, opened
from perdure.cli.terminal import paper
from perdure.cli.words import counted, plain, size
from perdure.clock import SystemClock
from perdure.engine.keeping.backing import back_up
from perdure.store.blobs import open_blobs
from perdure.store.opening import default_blobs_url

FILE = "perdure.db"
"""What the copy is called in a folder."""


@click.command("backup")
@click.argument("destination", metavar="DEST", type=click.Path())
@click.option("--force", is_flag=True, help="Also over a file that is there.")
@blobs_option
@store_option
@json_option
@awaited
async def backup_command(destination: str, force: bool, blobs_url: str | None, store: Place, as_json: bool) -> int:
    """Copy a store that is a SQLite file to DEST, with its blobs and its archive, while runs go on.

    DEST is a file, or a folder if it is one or ends with a slash; folders that are not there are made. The copy is a store: name
    it with --store to use it. Of a PostgreSQL database, say pg_dump.

    \b
      perdure backup nightly.db
      perdure verify --store sqlite:///nightly.db
    """
    async with opened(store) as source:
        target = _file_at(destination)
        blobs = open_blobs(blobs_url or default_blobs_url(source.url))
        try:
            folder = archive_folder(store)
            done = await back_up(source, blobs, folder, target, replaces=force, clock=SystemClock())
        finally:
            await blobs.close()
    if as_json:
        print_json(
            {
                "file": str(done.path),
                "store": done.url,
                "size": done.size,
                "blobs": done.blobs,
                "archives": done.archives,
            }
        )
    else:
        what = f"{size(done.size)}, {counted(done.blobs, 'blob')}"
        click.echo(f"{paper().pen.good('✓')} the store is copied to {plain(str(target))} {paper().pen.faint(what)}")
    return Exit.DONE


def _file_at(destination: str) -> Path:
    path = Path(destination)
    if destination.endswith(os.sep):
        path.mkdir(parents=True, exist_ok=True)
    return path / FILE if path.is_dir() else path
