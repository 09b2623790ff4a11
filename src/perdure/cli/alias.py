"""The command about aliases of workflows: `alias` lists them, sets one, removes it, and moves it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import click

from perdure.cli.exits import Exit
from perdure.cli.options import Place, WholeNumber, json_option, not_empty, print_json, store_option
from perdure.cli.stores import require
from perdure.cli.tables import print_table
from perdure.cli.terminal import paper
from perdure.cli.words import day_and_time, plain
from perdure.engine.engine import Engine
from perdure.engine.starting.versions import Alias, Move
from perdure.graph.aliases import alias_problem, checked_targets


@click.command("alias")
@click.argument("workflow", metavar="WORKFLOW")
@click.argument("setting", metavar="[ALIAS=VERSION]", required=False)
@click.option("--remove", metavar="ALIAS", callback=not_empty, help="Take the alias away.")
@click.option("--rollback", metavar="ALIAS", callback=not_empty, help="Move the alias back to where it pointed before.")
@click.option("--history", metavar="ALIAS", callback=not_empty, help="List where the alias has pointed.")
@click.option(
    "--revision",
    type=WholeNumber(min=0),
    metavar="N",
    help="Only if the alias has been moved so often; else end with 2.",
)
@store_option
@json_option
def alias_command(
    workflow: str,
    setting: str | None,
    remove: str | None,
    rollback: str | None,
    history: str | None,
    revision: int | None,
    store: Place,
    as_json: bool,
) -> int:
    """Say which version of a workflow an alias means; without anything else, list the aliases that it has.

    Runs that are started by the alias (`perdure run WORKFLOW@ALIAS`) follow that version from then on; those that are there keep
    theirs. Several versions with weights share the runs. Moving is one step for everybody, and is recorded. `latest` is always
    there, and means the newest version unless it is set.

    \b
      perdure alias digest
      perdure alias digest stable=3
      perdure alias digest stable=3:90,4:10
      perdure alias digest --rollback stable
      perdure alias digest --remove stable
    """
    if sum(wish is not None for wish in (setting, remove, rollback, history)) > 1:
        raise click.UsageError("ALIAS=VERSION, --remove, --rollback and --history do not go together.")
    if revision is not None and setting is None and remove is None:
        raise click.UsageError("--revision goes with ALIAS=VERSION or --remove.")
    require(store)
    if history is not None:
        _print_moves(_asked(store, lambda engine: engine.alias_moves(workflow, history)), history, as_json=as_json)
    elif setting is not None:
        name, targets = _setting(setting)
        _tell(_asked(store, lambda engine: engine.alias(workflow, name, targets, revision=revision)), as_json=as_json)
    elif rollback is not None:
        _tell(_asked(store, lambda engine: engine.rollback(workflow, rollback)), as_json=as_json)
    else:
        _print_aliases(_asked(store, lambda engine: _left(engine, workflow, remove, revision)), as_json=as_json)
    return Exit.DONE


def weights(targets: Mapping[int, int]) -> str:
    """Return where an alias points as it is written on the command line."""
    if len(targets) == 1:
        return str(next(iter(targets)))
    return ",".join(f"{version}:{weight}" for version, weight in targets.items())


async def _left(engine: Engine, workflow: str, remove: str | None, revision: int | None) -> Sequence[Alias]:
    if remove is not None:
        await engine.remove_alias(workflow, remove, revision=revision)
    return await engine.aliases(workflow)


def _asked(place: Place, ask: Callable[[Engine], Coroutine[Any, Any, Any]]) -> Any:
    async def asked() -> Any:
        async with Engine(place.url, workflows=(), recover=False) as engine:  # without workflows it drives nothing
            return await ask(engine)

    return asyncio.run(asked())


def _setting(text: str) -> tuple[str, dict[int, int]]:
    name, equals, to = text.partition("=")
    if not equals:
        raise click.UsageError(f"{text!r} is no setting: write ALIAS=VERSION, or ALIAS=VERSION:WEIGHT,VERSION:WEIGHT.")
    if (problem := alias_problem(name)) is not None:
        raise click.UsageError(f"{problem}.")
    targets: dict[int, int] = {}
    for part in to.split(","):
        version, colon, weight = part.partition(":")
        numbers = (version.strip(), weight.strip() if colon else "1")
        if not all(number.isascii() and number.isdigit() for number in numbers):
            raise click.UsageError(f"{part!r} is neither VERSION nor VERSION:WEIGHT.")
        if int(numbers[0]) in targets:
            raise click.UsageError(f"Version {numbers[0]} is named twice.")
        targets[int(numbers[0])] = int(numbers[1])
    try:
        return name, checked_targets(targets)
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None


def _tell(alias: Alias, *, as_json: bool) -> None:
    if as_json:
        print_json(alias)
        return
    means = "the newest version" if alias.follows else f"version {weights(alias.targets)}"
    click.echo(f"{plain(alias.workflow)}@{alias.name} means {means}")


def _print_aliases(aliases: Sequence[Alias], *, as_json: bool) -> None:
    if as_json:
        print_json(aliases)
        return
    rows = [
        (
            alias.name,
            weights(alias.targets) + (" (the newest)" if alias.follows else ""),
            str(alias.revision),
            "" if alias.moved_at is None else day_and_time(int(alias.moved_at.timestamp() * 1_000_000)),
        )
        for alias in aliases
    ]
    print_table(("ALIAS", "VERSION", "REVISION", "MOVED"), rows, paper(), right=(2,))


def _print_moves(moves: Sequence[Move], alias: str, *, as_json: bool) -> None:
    if as_json:
        print_json(moves)
        return
    if not moves:
        click.echo(f"{plain(alias)} has not been moved.")
        return
    rows = [
        (
            str(move.revision),
            weights(move.targets) if move.targets else "removed",
            day_and_time(int(move.at.timestamp() * 1_000_000)),
            "" if move.restores is None else f"back to {move.restores}" if move.restores else "back to the newest",
        )
        for move in moves
    ]
    print_table(("REVISION", "VERSION", "MOVED", ""), rows, paper(), right=(0,))
