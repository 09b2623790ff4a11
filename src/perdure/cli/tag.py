"""`perdure tag`: words by which runs are found again."""

from __future__ import annotations

from collections.abc import Sequence

import click

from perdure.cli.exits import Exit
from perdure.cli.options import Place, awaited, json_option, print_json, store_option
from perdure.cli.stores import opened
from perdure.cli.words import plain
from perdure.engine.inspect import find_run
from perdure.engine.runs.tags import checked_tags


@click.command("tag")
@click.argument("run", metavar="RUN")
@click.argument("tags", metavar="[TAG]...", nargs=-1)
@click.option("--remove", multiple=True, metavar="TAG", help="Take this tag from it. May be given several times.")
@store_option
@json_option
@awaited
async def tag_command(run: str, tags: Sequence[str], remove: Sequence[str], store: Place, as_json: bool) -> int:
    """Give a run tags, at any time, and print those that it has. `perdure list --tag TAG` finds it by them.

    RUN is a run's id, or as much of its beginning as no other run has.

    \b
      perdure tag 0198f2 nightly customer:7
      perdure tag 0198f2 --remove nightly
      perdure tag 0198f2
    """
    try:
        added, removed = checked_tags(tags), checked_tags(remove)
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error
    async with opened(store) as source:
        run_id = await find_run(source, run)
        if added:
            await source.tag_run(run_id, added)
        if removed:
            await source.untag_run(run_id, removed)
        found = await source.load_tags(run_id)
    if as_json:
        print_json({"run_id": run_id, "tags": list(found)})
    else:
        click.echo("\n".join(plain(tag) for tag in found) or f"Run {plain(run_id)} has no tags.")
    return Exit.DONE
