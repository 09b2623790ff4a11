"""What a run is to be started of: a workflow or a graph that is given, or one that was saved, by name and version or alias.

An alias is looked up once for each run. If the run is there already, it keeps the version that it has, wherever the alias points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.engine.driving.catalogue import Catalogue, Prepared
from perdure.engine.starting.versions import load_aliases, targets_of
from perdure.errors import AliasNotFound
from perdure.graph.aliases import Reference, parse_reference, version_for
from perdure.graph.declare import RunSettings as WorkflowSettings
from perdure.graph.declare import Workflow
from perdure.graph.model import Graph
from perdure.ids import RunId
from perdure.journal.events import VersionResolved
from perdure.store.base import Store


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is started of."""

    program: Workflow[..., Any] | Graph
    """As it was given; of one that was saved, its graph."""
    graph: Graph
    input_types: Mapping[str, Any] = {}
    """The annotations of inputs, as far as they are known."""
    output_type: Any = Any
    settings: WorkflowSettings = WorkflowSettings()
    prepared: Prepared | None = None
    """The saved version; None if what was given has to be saved."""
    resolved: VersionResolved | None = None
    """What an alias meant for the run, if one was named."""
    is_there: bool = False
    """Whether the run is there, and has the version. Then nothing is to be started, and its code need not be here."""


async def choose(
    workflow: Workflow[..., Any] | Graph | str, run_id: RunId, catalogue: Catalogue, store: Store, *, may_exist: bool
) -> Choice:
    """Find what to start. `may_exist` says that somebody has chosen the run's id, so that the run may be there.

    Raises VersionNotFound or AliasNotFound for a name that means nothing, TypesMissing or TypesChanged for what cannot run here.
    """
    if isinstance(workflow, Graph):
        return Choice(program=workflow, graph=workflow)
    if isinstance(workflow, Workflow):
        return Choice(
            program=workflow,
            graph=workflow.graph,
            input_types=workflow.input_types,
            output_type=workflow.output_type,
            settings=workflow.settings,
        )
    reference = parse_reference(workflow)
    there = await store.load_state(run_id) if may_exist and reference.version is None else None
    if there is not None and there.workflow == reference.workflow:
        prepared = await catalogue.read(run_id, there.workflow, there.version)  # others may have what it needs
        return _saved(prepared, catalogue.workflow(reference.workflow), None, is_there=True)
    version, resolved = await resolve(reference, run_id, store)
    prepared = await catalogue.saved(run_id, reference.workflow, version)
    return _saved(prepared, catalogue.workflow(reference.workflow), resolved)


async def resolve(reference: Reference, run_id: RunId, store: Store) -> tuple[int, VersionResolved | None]:
    """Return the version that a run gets, and what is to be recorded of that. Raises as `choose` does for a name."""
    name, alias = reference.workflow, reference.alias
    if reference.version is not None:
        return reference.version, None
    state = await store.load_alias(name, alias)
    targets = targets_of(alias, state)
    if not targets:
        raise AliasNotFound(name, alias, [known.name for known in await load_aliases(store, name)])
    version = version_for(run_id, name, alias, targets)
    revision = 0 if state.move is None else state.move.revision
    return version, VersionResolved(workflow=name, alias=alias, version=version, revision=revision)


def _saved(
    prepared: Prepared,
    declared: Workflow[..., Any] | None,
    resolved: VersionResolved | None,
    *,
    is_there: bool = False,
) -> Choice:
    """Return a saved version, with what the workflow of its name says of inputs that both have alike."""
    graph = prepared.graph
    if declared is None:
        return Choice(program=graph, graph=graph, prepared=prepared, resolved=resolved, is_there=is_there)
    alike = {given.name for given in graph.inputs if given in declared.inputs}
    alike |= {handle.name for handle in declared.stream_handles}
    return Choice(
        program=graph,
        graph=graph,
        input_types={name: annotation for name, annotation in declared.input_types.items() if name in alike},
        output_type=declared.output_type,
        settings=declared.settings,
        prepared=prepared,
        resolved=resolved,
        is_there=is_there,
    )
