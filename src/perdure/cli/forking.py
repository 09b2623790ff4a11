"""The command that begins a run with what another one has done: `fork`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from perdure.cli.given import as_annotated, split_pairs
from perdure.cli.options import (
    Place,
    Seconds,
    WholeNumber,
    imports_option,
    json_option,
    new_run_id,
    place_in_log,
    store_option,
    users_output,
)
from perdure.cli.run import Ended, attend, conclude, prepare, warn_of_kept_settings
from perdure.cli.stores import require
from perdure.engine.engine import Engine
from perdure.graph.declare import declared_workflows
from perdure.ids import RunId


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a fork is to be."""

    run_id: str | None
    at: str | int | None
    inputs: Mapping[str, str]
    """As they were written."""
    version: int | None
    timeout: float | None
    """None is that of the run from which it comes, and infinity no limit."""


class SecondsOrNone(Seconds):
    """A time, or the word `none`, which is infinity."""

    name = "number of seconds, and not 'none'"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return math.inf if value in ("none", math.inf) else super().convert(value, param, ctx)


@click.command("fork")
@click.argument("run", metavar="RUN")
@click.option("--run-id", metavar="ID", callback=new_run_id, help="The id of the fork. It is made up unless given.")
@click.option("--at", "place", metavar="PLACE", help="A checkpoint or an event: what was done later is not taken over.")
@click.option(
    "--input", "-i", "pairs", multiple=True, metavar="NAME=VALUE",
    help="Another input: JSON, or a text. What depends on it is not taken over. May be given several times.")  # fmt: skip
@click.option(
    "--version", type=WholeNumber(min=1), metavar="N",
    help="Another saved version of the workflow. What differs there is not taken over.")  # fmt: skip
@click.option(
    "--timeout", type=SecondsOrNone(min=0, min_open=True), metavar="SECONDS",
    help="For the whole fork, instead of that of the run: none is no limit.")  # fmt: skip
@imports_option
@store_option
@json_option
def fork_command(
    run: str,
    run_id: str | None,
    place: str | None,
    pairs: Sequence[str],
    version: int | None,
    timeout: float | None,
    imports: Sequence[str],
    store: Place,
    as_json: bool,
) -> int:
    """Begin another run with what a RUN has done, and print its result. The run itself stays as it is.

    It is a run of the same version with the same inputs, unless another one is named. What was completed does not run again;
    everything else begins. A fork whose --run-id is there already is gone on with.

    \b
      perdure fork 0198f2
      perdure fork 0198f2 --at before-review --run-id second-thoughts
      perdure fork 0198f2 -i month=June
      perdure fork 0198f2 --timeout 3600
    """
    texts = split_pairs(pairs)
    require(store)
    wanted = None if place is None else place_in_log(place)
    with users_output(as_json=as_json):
        source = asyncio.run(prepare(run, imports, store, reopens=True))
        wish = Wish(run_id=run_id, at=wanted, inputs=texts, version=version, timeout=timeout)
        ended = asyncio.run(_forked(source, wish, store, as_json=as_json))
    return conclude(ended, store, as_json=as_json)


async def _forked(source: RunId, wish: Wish, place: Place, *, as_json: bool) -> Ended:
    async with Engine(place.url, recover=False) as engine:
        run = await engine.get(source)
        declared = declared_workflows().get((await run.state()).workflow)
        inputs = as_annotated(wish.inputs, {} if declared is None else declared.input_types)
        timeout = msgspec.UNSET if wish.timeout is None else None if math.isinf(wish.timeout) else wish.timeout
        fork = await run.fork(run_id=wish.run_id, at=wish.at, inputs=inputs, version=wish.version, timeout=timeout)
        if timeout is not msgspec.UNSET:
            warn_of_kept_settings(await fork.state(), place, timeout_seconds=timeout)
        return await attend(engine, fork.run_id, place, None, as_json=as_json, known=0, stay=False)
