"""What is to run, where it was saved before: by its name and a version or an alias."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from perdure.cli.options import Place
from perdure.cli.program import load_types_for
from perdure.cli.stores import opened
from perdure.engine.starting.choosing import resolve
from perdure.errors import ProgramError, VersionNotFound
from perdure.graph.aliases import Reference, parse_reference
from perdure.graph.forms import graph_from_json
from perdure.graph.model import Graph
from perdure.ids import RunId
from perdure.journal.states import RunState
from perdure.store.base import Store


def is_saved(target: str) -> bool:
    """Whether this names something that was saved, and not a file."""
    return "@" in target and not Path(target).exists() and not Path(target.rpartition(":")[0]).is_file()


async def load_saved(target: str, run_id: str, imports: Iterable[str], place: Place) -> Graph:
    """Return the graph of what a run of this id gets by a name, with its node types at hand.

    Raises VersionNotFound or AliasNotFound if the name means nothing.
    """
    async with opened(place) as store:
        reference = _reference(target)
        there = await store.load_state(RunId(run_id))
        if there is not None and there.workflow == reference.workflow and reference.version is None:
            version = there.version
        else:
            version, _ = await resolve(reference, RunId(run_id), store)
        saved = await store.load_version(reference.workflow, version)
    if saved is None:
        raise VersionNotFound(reference.workflow, version)
    graph = graph_from_json(saved.graph)
    load_types_for(run_id, saved, graph, imports)
    return graph


async def on_version(run: RunState, version: str, store: Store) -> tuple[RunState, Graph]:
    """Return a run as if it followed a version of its workflow, by its number or an alias, and the graph of that.

    Raises VersionNotFound or AliasNotFound if there is none.
    """
    number, _ = await resolve(_reference(f"{run.workflow}@{version}"), run.run_id, store)
    saved = await store.load_version(run.workflow, number)
    if saved is None:
        raise VersionNotFound(run.workflow, number)
    return msgspec.structs.replace(run, version=number, source=saved.source), graph_from_json(saved.graph)


def _reference(target: str) -> Reference:
    try:
        return parse_reference(target)
    except ValueError as error:
        raise ProgramError(f"{error}.") from None
