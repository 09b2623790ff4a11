"""Commands about several runs: each is done by itself, and one that is refused holds up no other."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import click

from perdure.cli.exits import Exit, exit_for
from perdure.cli.terminal import paper
from perdure.cli.words import plain
from perdure.errors import PerdureError

T = TypeVar("T")

Refusals = dict[str, PerdureError]
"""By how the run was named: why nothing was done."""


FEW = 100
"""So many are done before anybody wonders how long it takes."""


def counted_off(items: Sequence[T], doing: str) -> Iterator[T]:
    """Yield each, and show beside the output how many are done, if there are many and somebody watches."""
    is_hidden = len(items) <= FEW or not paper(sys.stderr).is_live
    with click.progressbar(items, label=doing, file=sys.stderr, show_pos=True, hidden=is_hidden) as shown:
        yield from shown


async def for_each(runs: Sequence[str], act: Callable[[str], Awaitable[T]]) -> tuple[dict[str, T], Refusals]:
    """Return what came of each, by how it was named, and why nothing came of the others."""
    done: dict[str, T] = {}
    refused: Refusals = {}
    for run in dict.fromkeys(runs):
        try:
            done[run] = await act(run)
        except PerdureError as error:
            refused[run] = error
    return done, refused


def raise_if_alone(runs: Sequence[str], refused: Mapping[str, PerdureError]) -> None:
    """A command about one run ends with why it was refused, as all commands do."""
    if len(runs) == 1:
        for error in refused.values():
            raise error


def tell_refusals(refused: Mapping[str, PerdureError]) -> None:
    """Say what was refused and why, where errors are told."""
    for error in refused.values():
        click.echo(f"Error: {plain(str(error))}", err=True)


def refusal_documents(refused: Mapping[str, PerdureError]) -> list[dict[str, Any]]:
    """Return the same as JSON, with the run as it was named."""
    return [{"run_id": run, "error": {"code": error.code, "message": str(error)}} for run, error in refused.items()]


def exit_after_each(refused: Mapping[str, PerdureError]) -> Exit:
    """Return the exit code: that of the first refusal, if there is one."""
    return next((exit_for(error) for error in refused.values()), Exit.DONE)
