"""Commands with which a run goes back: `retry`, `jump`, `promote`, `restore`; and what comes of it: `branches`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import click
import msgspec

from perdure.cli.exits import Exit
from perdure.cli.given import as_annotated, split_pairs
from perdure.cli.options import (
    COMMAND_LINE,
    Place,
    WholeNumber,
    imports_option,
    json_option,
    place_in_log,
    print_json,
    store_option,
    users_output,
)
from perdure.cli.output import read_output
from perdure.cli.run import Ended, attend, conclude, prepare
from perdure.cli.stores import opened, require
from perdure.cli.terminal import Paper, paper
from perdure.cli.words import cells, counted, item_names, padded, plain
from perdure.engine.engine import Engine
from perdure.engine.inspect import find_run, load_run
from perdure.engine.runs.branches import Branch, Span, load_branches
from perdure.engine.runs.repairs import Preview
from perdure.engine.runs.run import Run
from perdure.errors import CannotGoBack
from perdure.graph.declare import declared_types
from perdure.ids import RunId
from perdure.journal.flow import Range, ranges_of

MOST_NAMES = 8
MOST_ITEMS = 1_000_000
MOST_DIGITS = 12

reason_option = click.option("--reason", default="", metavar="TEXT", help="Why, for whoever looks at the run later.")
version_option = click.option(
    "--version", metavar="V",
    help="Another version of the workflow that it follows from there on: its number, or an alias.")  # fmt: skip
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would run again, and do nothing.")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be otherwise when a run goes back; without a node, a branch or a place, what has failed is tried again."""

    node: str | None = None
    branch: int | None = None
    place: str | int | None = None
    inputs: Mapping[str, str] = {}
    """As they were written."""
    outputs: Any = msgspec.UNSET
    items: Sequence[int] | None = None
    version: str | None = None


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """How a run goes back, to wherever that is."""

    reason: str
    is_dry: bool
    imports: Sequence[str]
    place: Place
    as_json: bool


def manner_options(command: Callable[..., int]) -> Callable[..., int]:
    """What can be said of how a run goes back: `--reason`, `--dry-run`, `--import`, `--store`, `--json`."""

    @functools.wraps(command)
    def told(*, reason: str, dry_run: bool, imports: Sequence[str], store: Place, as_json: bool, **others: Any) -> int:
        manner = Manner(reason=reason, is_dry=dry_run, imports=imports, place=store, as_json=as_json)
        return command(**others, manner=manner)

    return reason_option(dry_run_option(imports_option(store_option(json_option(told)))))


def read_items(text: str) -> list[int]:
    """Return the items that a text names: `3,17` or `3-7`."""
    ranges: list[range] = []
    for part in text.split(","):
        first, is_range, last = part.strip().partition("-")
        if not (_is_number(first) and (_is_number(last) if is_range else True)):
            raise click.UsageError(f"--items {text!r} does not name items: {part.strip()!r} is neither 3 nor 3-7.")
        if is_range and int(last) < int(first):
            raise click.UsageError(f"--items {text!r} does not name items: {part.strip()!r} ends before it begins.")
        ranges.append(range(int(first), int(last if is_range else first) + 1))
    if sum(map(len, ranges)) > MOST_ITEMS:
        raise click.UsageError(f"--items {text!r} names more than {MOST_ITEMS:,} items.")
    return [*chain.from_iterable(ranges)]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS


@click.command("retry")
@click.argument("run", metavar="RUN")
@version_option
@manner_options
def retry_command(run: str, version: str | None, manner: Manner) -> int:
    """Go on with a run that has failed or was cancelled: what has failed or was stopped is tried again, and print its result.

    RUN is a run's id, or as much of its beginning as no other run has. What was completed stays and does not run again; of a
    map, only items that are not done. The code is taken from where `perdure resume` takes it, as it is by now. With --version,
    the run follows that version from here on; what stays has to be the same there.

    \b
      perdure retry 0198f2 --dry-run
      perdure retry 0198f2 --version latest
      perdure retry 0198f2 --reason "the bucket is there by now"
    """
    return _go_back(run, Change(version=version), manner)


@click.command("jump")
@click.argument("run", metavar="RUN")
@click.argument("node", metavar="NODE")
@click.option(
    "--input", "-i", "pairs", multiple=True, metavar="NAME=VALUE",
    help="What the node is given instead: JSON, or a text. May be given several times.")  # fmt: skip
@click.option("--output", metavar="JSON", help="What the node is to have returned: it does not run then.")
@click.option("--items", metavar="ITEMS", help="Only these items of a map, from 0: 3,17 or 3-7.")
@version_option
@manner_options
def jump_command(
    run: str,
    node: str,
    pairs: Sequence[str],
    output: str | None,
    items: str | None,
    version: str | None,
    manner: Manner,
) -> int:
    """Go back to just before a NODE of a run and go on from there, and print the result.

    The node and whatever depends on it run again, on a branch; all else stays as it is, and nothing is removed. A run that has
    ended moves again; what had failed or was stopped elsewhere in it is tried again. With --items, only these of a map run again,
    and of maps over it; the results of all others are kept. With --version, the run follows that version from here on: what
    depends on the node is told by its graph, and what stays has to be the same there.

    \b
      perdure jump 0198f2 summarize --dry-run
      perdure jump 0198f2 summarize -i temperature=0.2
      perdure jump 0198f2 approve --output true
      perdure jump 0198f2 summarize --items 3,17-20
      perdure jump 0198f2 summarize --version 2
    """
    if pairs and output is not None:
        raise click.UsageError("--input and --output do not go together: a node whose output is given does not run.")
    if items is not None and output is not None:
        raise click.UsageError("--items and --output do not go together: a node whose output is given does not run.")
    texts = split_pairs(pairs)
    chosen = None if items is None else read_items(items)
    require(manner.place)
    with users_output(as_json=manner.as_json):
        value: Any = msgspec.UNSET
        if output is not None:
            value = asyncio.run(read_output(run, node, output, manner.imports, manner.place, version=version))
    change = Change(node=node, inputs=texts, outputs=value, items=chosen, version=version)
    return _go_back(run, change, manner)


@click.command("promote")
@click.argument("run", metavar="RUN")
@click.argument("branch", metavar="BRANCH", type=WholeNumber(min=1))
@manner_options
def promote_command(run: str, branch: int, manner: Manner) -> int:
    """Go on from what a run was at the end of an earlier BRANCH, and print its result.

    If the run had ended there, it has ended so again and nothing runs; otherwise it goes on from there. Nothing is removed: it
    does so on a branch of its own. A run that moves has to be paused or cancelled first. `perdure branches RUN` shows which
    branches there are.

    \b
      perdure promote 0198f2 1
      perdure promote 0198f2 3 --dry-run
    """
    return _go_back(run, Change(branch=branch), manner)


@click.command("restore")
@click.argument("run", metavar="RUN")
@click.argument("place", metavar="PLACE")
@manner_options
def restore_command(run: str, place: str, manner: Manner) -> int:
    """Go back to what a run was at a PLACE and go on from there, and print its result.

    PLACE is the name of a checkpoint, or the number of an event. What was done by then is kept, what was at work then is tried
    again, and what was asked is asked again. Nothing is removed: the run goes on on a branch. A run that moves has to be paused
    or cancelled first.

    \b
      perdure restore 0198f2 before-review
      perdure restore 0198f2 42 --dry-run
    """
    return _go_back(run, Change(place=place_in_log(place)), manner)


@click.command("branches")
@click.argument("run", metavar="RUN")
@store_option
@json_option
def branches_command(run: str, store: Place, as_json: bool) -> int:
    """List the lines of history of a run, oldest first. The run goes on on the last one.

    RUN is a run's id, or as much of its beginning as no other run has.

    \b
      perdure branches 0198f2
    """
    found = asyncio.run(_branches(run, store))
    if as_json:
        print_json(found)
    else:
        _print(found, paper())
    return Exit.DONE


def _go_back(run: str, change: Change, manner: Manner) -> int:
    place, as_json = manner.place, manner.as_json
    require(place)
    with users_output(as_json=as_json):
        run_id = asyncio.run(prepare(run, manner.imports, place, reopens=True, version=change.version))
        found = asyncio.run(_found(run_id, change, manner))
    if isinstance(found, Preview):
        return _foretell(found, run_id, paper(), as_json=as_json)
    return conclude(found, place, as_json=as_json)


async def _found(run_id: RunId, change: Change, manner: Manner) -> Preview | Ended:
    if manner.is_dry:
        return await _preview(run_id, change, manner.place)
    return await _went_back(run_id, change, manner)


async def _went_back(run_id: RunId, change: Change, manner: Manner) -> Ended:
    async with Engine(manner.place.url, recover=False) as engine:
        handle = await engine.get(run_id)
        known = (await handle.state()).last_seq
        if change.branch is not None:
            await handle.promote(change.branch, reason=manner.reason)
        elif change.place is not None:
            await handle.restore(change.place, reason=manner.reason)
        elif change.node is None:
            await handle.retry(version=change.version, reason=manner.reason)
        else:
            await handle.jump(
                change.node,
                inputs=await _inputs(handle, change, engine),
                outputs=change.outputs,
                items=change.items,
                version=change.version,
                reason=manner.reason,
                by=COMMAND_LINE,
            )
        return await attend(engine, run_id, manner.place, None, as_json=manner.as_json, known=known, stay=False)


async def _inputs(handle: Run[Any], change: Change, engine: Engine) -> dict[str, Any]:
    """Return what the node is to be given, read as its parameters say where its code is at hand."""
    graph = await engine.graph_of(await handle.state()) if change.inputs else None
    types = () if graph is None else [node.type for node in graph.nodes if node.id == change.node]
    handles = [handle for name in types if name in declared_types() for handle in declared_types()[name].inputs]
    return as_annotated(change.inputs, {handle.name: handle.annotation for handle in handles})


async def _preview(run_id: RunId, change: Change, place: Place) -> Preview:
    async with Engine(place.url, recover=False) as engine:
        handle = await engine.get(run_id)
        return await handle.preview(
            change.node,
            inputs=await _inputs(handle, change, engine),
            outputs=change.outputs,
            items=change.items,
            version=change.version,
            branch=change.branch,
            place=change.place,
        )


async def _branches(text: str, place: Place) -> list[Branch]:
    async with opened(place) as store:
        run_id = await find_run(store, text)
        stored = await load_run(store, run_id)
        return await load_branches(store, stored.run)


def _foretell(preview: Preview, run_id: RunId, sheet: Paper, *, as_json: bool) -> int:
    if as_json:
        print_json(preview)
        return Exit.DONE
    if preview.given_up is not None:
        raise CannotGoBack(run_id, preview.given_up)
    if preview.runs:
        click.echo(f"{counted(len(preview.runs), 'node')} would run: {_names(preview.runs)}")
    else:
        click.echo("nothing would run")
    for name, positions in preview.items.items():
        click.echo(f"of {plain(name)} only {item_names(ranges_of(positions))}")
    if preview.in_doubt:
        click.echo(f"{_names(preview.in_doubt)} would be in doubt: somebody has to say what became of it")
    if preview.asks:
        click.echo(f"{_names(preview.asks)} would ask again")
    if preview.kept:
        click.echo(sheet.pen.faint(f"{counted(len(preview.kept), 'node')} would be kept: {_names(preview.kept)}"))
    return Exit.DONE


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(map(plain, names[:MOST_NAMES]))
    return f"{shown} and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else shown


def _print(found: Sequence[Branch], sheet: Paper) -> None:
    heads = ("BRANCH", "FROM", "VERSION", "CREATED", "WHAT")
    rows = [(str(branch.branch), _origin(branch), _version(branch), _when(branch), _what(branch)) for branch in found]
    widths = [max(cells(row[column]) for row in (heads, *rows)) for column in range(4)]
    for row in (heads, *rows):
        line = "  ".join([*(padded(row[column], widths[column]) for column in range(4)), row[4]]).rstrip()
        click.echo(sheet.pen.faint(line) if row is heads else line)


def _origin(branch: Branch) -> str:
    return "" if branch.parent is None else f"{branch.parent} at {branch.cut}"


def _version(branch: Branch) -> str:
    return "" if branch.version is None else str(branch.version)


def _when(branch: Branch) -> str:
    return "" if branch.at is None else f"{branch.at.astimezone():%Y-%m-%d %H:%M:%S}"


def _what(branch: Branch) -> str:
    parts = [f"as it was at {branch.cut}"] if branch.restored else []
    parts += [f"{_names(branch.dropped)} again"] if branch.dropped else []
    parts += [f"{_names(branch.retried)} retried"] if branch.retried else []
    parts += [f"{item_names(_ranges(spans))} of {plain(name)} again" for name, spans in branch.items.items()]
    parts += [plain(branch.reason)] if branch.reason else []
    return "; ".join(parts)


def _ranges(spans: Sequence[Span]) -> list[Range]:
    return [(span.first, span.last - span.first + 1) for span in spans]
