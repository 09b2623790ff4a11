"""Commands that take runs out of a store, whole, and into one: `export`, `import`."""

from __future__ import annotations

import re
from pathlib import Path

import click

from perdure.cli.exits import Exit
from perdure.cli.marks import words_of
from perdure.cli.options import Place, awaited, json_option, new_run_id, print_json, store_option
from perdure.cli.stores import holding
from perdure.cli.terminal import paper
from perdure.cli.words import counted, plain, size
from perdure.clock import SystemClock
from perdure.engine.keeping.exporting import Exported, export_run
from perdure.engine.keeping.importing import Imported, import_file
from perdure.errors import ProgramError
from perdure.ids import DEFAULT_PROJECT, RunId
from perdure.store.blobs import open_blobs
from perdure.store.bundles import MOST_BYTES
from perdure.store.opening import default_blobs_url, open_store

SUFFIX = ".bundle"
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


def _bytes(ctx: click.Context, parameter: click.Parameter, value: str) -> int:
    """Read a number with a unit: `500M`, `64G`."""
    found = re.fullmatch(r"(\d{1,9})([KMGT]?)", value.upper(), re.ASCII)
    if found is None:
        raise click.BadParameter(
            f"{value!r} is no size: give a number and a unit, such as 500M or 64G.", ctx, parameter
        )
    return int(found[1]) * _UNITS[found[2]]


def blobs_option(command: click.decorators.FC) -> click.decorators.FC:
    """`--blobs URL`."""
    return click.option(
        "--blobs", "blobs_url", metavar="URL", help="Where the blobs are, if the engines were told so."
    )(command)


@click.command("export")
@click.argument("run", metavar="RUN")
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Also over a file that is there.")
@blobs_option
@store_option
@json_option
@awaited
async def export_command(
    run: str, file: Path | None, force: bool, blobs_url: str | None, store: Place, as_json: bool
) -> int:
    """Write a run whole into FILE: its graph, its history, its values and blobs.

    RUN is a run's id, or as much of its beginning as no other run has. Without a FILE, it is called after the run. A run that
    lives is written as it is at one moment, and goes on meanwhile.

    \b
      perdure export 0198f2
      perdure export 0198f2 failed.bundle
    """
    async with holding(store, run) as (source, (run_id,)):
        path = file or Path(_file_name(run_id))
        if path.exists() and not force:
            raise ProgramError(f"{path} is there already. Name another file, or say --force.")
        blobs = open_blobs(blobs_url or default_blobs_url(source.url))
        try:
            done = await export_run(source, blobs, run_id, path, clock=SystemClock())
        finally:
            await blobs.close()
    if as_json:
        print_json(_exported_document(done))
    else:
        what = f"{counted(done.events, 'event')}, {counted(done.blobs, 'blob')}, {size(done.size)}"
        click.echo(f"{paper().pen.good('✓')} run {plain(run_id)} is in {plain(str(path))} {paper().pen.faint(what)}")
    return Exit.DONE


@click.command("import")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--run-id", metavar="ID", callback=new_run_id, help="What the run is called here; else as in the file.")
@click.option("--go-on", is_flag=True, help="Let a run that has not ended go on at once; else it is paused.")
@click.option("--no-verify", is_flag=True, help="Take a run that is damaged, or too large for the memory.")
@click.option(
    "--max-size",
    callback=_bytes,
    metavar="SIZE",
    default=f"{MOST_BYTES // 1024**3}G",
    show_default=True,
    help="Refuse a file that unpacks to more.",
)
@blobs_option
@store_option
@json_option
@awaited
async def import_command(
    file: Path,
    run_id: str | None,
    go_on: bool,
    no_verify: bool,
    max_size: int,
    blobs_url: str | None,
    store: Place,
    as_json: bool,
) -> int:
    """Take up a run from a FILE that `perdure export` has written. Twice is as good as once.

    The store is created if there is none. A run that has not ended is paused: it may go on elsewhere, and `perdure resume` says
    that it goes on here. Import only what you trust: a run that goes on calls your nodes with whatever values are in the file.

    \b
      perdure import failed.bundle
      perdure import failed.bundle --run-id a-copy --store postgresql://localhost/runs
    """
    source = await open_store(store.url)
    try:
        blobs = open_blobs(blobs_url or default_blobs_url(source.url))
        try:
            done = await import_file(
                source,
                blobs,
                file,
                project_id=DEFAULT_PROJECT,
                clock=SystemClock(),
                run_id=run_id,
                paused=not go_on,
                verify=not no_verify,
                most_bytes=max_size,
            )
        finally:
            await blobs.close()
    finally:
        await source.close()
    if as_json:
        print_json(done)
    else:
        _print_imported(done, store)
    return Exit.DONE


def _print_imported(done: Imported, store: Place) -> None:
    pen = paper().pen
    run = f"run {plain(done.run_id)}"
    if not done.is_new:
        click.echo(f"{run} is here already; nothing was changed")
        return
    what = f"{plain(done.workflow)} v{done.version}, {words_of(done.status)}, {counted(done.events, 'event')}"
    click.echo(f"{pen.good('✓')} {run} is imported {pen.faint(what)}")
    if done.is_paused:
        click.echo(f"It is paused. To go on with it here: {store.command('resume', done.run_id)}")


def _exported_document(done: Exported) -> dict[str, object]:
    return {
        "run_id": done.run_id,
        "file": str(done.path),
        "size": done.size,
        "digest": done.digest,
        "events": done.events,
        "blobs": done.blobs,
    }


def _file_name(run_id: RunId) -> str:
    """Return a name for the file of a run that is one name, whatever the run is called."""
    name = re.sub(r"[^\w.+:=-]", "_", run_id).lstrip(".") or "run"
    return name[:200] + SUFFIX
