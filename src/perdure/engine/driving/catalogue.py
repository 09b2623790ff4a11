"""What this engine knows how to run: node types by name, and saved versions prepared for running."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from perdure.engine.driving.programs import Program
from perdure.errors import JournalDamaged, TypesChanged, TypesMissing, VersionNotFound
from perdure.graph.declare import NodeType, Workflow, declared_types, declared_workflows
from perdure.graph.forms import graph_from_json
from perdure.graph.model import BUILT_IN, Graph
from perdure.graph.plan import Plan, compile_plan
from perdure.graph.registry import KnownTypes
from perdure.graph.source import Source
from perdure.graph.starts import started_by
from perdure.graph.unheeded import check_given
from perdure.graph.validate import validate
from perdure.graph.writing import content_hash, graph_to_json
from perdure.ids import RunId
from perdure.store.base import Store
from perdure.store.codecs import Codecs
from perdure.store.shapes import WorkflowVersion

A = TypeVar("A")
B = TypeVar("B")

MAX_PREPARED = 256
"""Prepared versions kept in memory, and graphs that are known to be saved."""


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """What a graph needs that this process lacks."""

    types: tuple[str, ...] = ()
    workflows: tuple[str, ...] = ()
    """Those of which it starts runs."""

    def __bool__(self) -> bool:
        return bool(self.types or self.workflows)


class Prepared:
    """A saved version, ready to run unless something is missing."""

    def __init__(
        self,
        version: WorkflowVersion,
        graph: Graph,
        plan: Plan,
        types: Mapping[str, NodeType[..., Any]],
        missing: Missing,
    ) -> None:
        self.version = version
        self.graph = graph
        self.plan = plan
        self.types = types
        self.program = Program(plan, types)
        self.source: dict[str, str] = version.source
        """Where the node types were declared. An equal graph may have been saved earlier from another place."""
        self.missing = missing


class _Outline(msgspec.Struct, frozen=True):
    """A graph that is ready to run as a version of which the number is not known yet."""

    graph: Graph
    plan: Plan
    types: Mapping[str, NodeType[..., Any]]
    missing: Missing

    def of(self, version: WorkflowVersion) -> Prepared:
        return Prepared(version, self.graph, self.plan, self.types, self.missing)


class Catalogue:
    """Finds node types and workflows, and prepares versions. Without explicit workflows it knows everything declared in the
    process; with them, also those of which they start runs."""

    def __init__(self, store: Store, codecs: Codecs, workflows: Iterable[Workflow[..., Any]] | None) -> None:
        self._store = store
        self._codecs = codecs
        self._given: dict[str, NodeType[..., Any]] | None = None
        self._own: dict[str, Workflow[..., Any]] = {}
        if workflows is not None:
            self._given = {}
            for workflow in workflows:
                self._own[workflow.name] = workflow
                self._learn(workflow.graph, workflow.types)
        self._prepared: OrderedDict[tuple[str, int], Prepared] = OrderedDict()
        self._graphs: OrderedDict[tuple[str, int], Graph] = OrderedDict()
        """Of versions that are only looked at."""
        self._saving = asyncio.Lock()
        self._saved: OrderedDict[int, Prepared] = OrderedDict()
        """By the identity of the graph object, which the prepared version keeps alive while it is in here."""

    def types(self) -> Mapping[str, NodeType[..., Any]]:
        """Return the node types that there are. One that was given no workflows at all has none: it is to drive nothing."""
        if self._given is None:
            return declared_types()
        return KnownTypes(self._given) if self._given else self._given

    def workflow(self, name: str) -> Workflow[..., Any] | None:
        """Return the workflow of this name of which runs can be started here, if there is one."""
        return declared_workflows().get(name) if self._given is None else self._own.get(name)

    def _learn(self, graph: Graph, types: Mapping[str, NodeType[..., Any]]) -> None:
        """Take note of what is needed to run a graph that is given, and the workflows of which it starts runs."""
        if self._given is None:
            return
        self._given.update(types)
        for name in started_by(graph):
            if name not in self._own and (started := declared_workflows().get(name)) is not None:
                self._own[name] = started
                self._learn(started.graph, started.types)

    async def save(
        self, workflow: Workflow[..., Any] | Graph, *, at: int, unless: Callable[[], Awaitable[None]] | None = None
    ) -> Prepared:
        """Check a workflow, save it under its name and return it prepared. Raises InvalidGraph with all that is wrong.

        `unless` is called before a graph is saved that this catalogue has not saved before, and raises what speaks against it.
        """
        graph = workflow if isinstance(workflow, Graph) else workflow.graph
        types = self.types() if isinstance(workflow, Graph) else workflow.types
        if (known := self._known(graph, types)) is not None:
            return known
        async with self._saving:  # many runs of one workflow may be started at once: one of them saves it
            return self._known(graph, types) or await self._save(workflow, graph, types, at, unless)

    def _known(self, graph: Graph, types: Mapping[str, NodeType[..., Any]]) -> Prepared | None:
        known = self._saved.get(id(graph))
        if known is None or any(types.get(name) is not node_type for name, node_type in known.types.items()):
            return None
        self._saved.move_to_end(id(graph))
        return known

    async def _save(
        self,
        workflow: Workflow[..., Any] | Graph,
        graph: Graph,
        types: Mapping[str, NodeType[..., Any]],
        at: int,
        unless: Callable[[], Awaitable[None]] | None,
    ) -> Prepared:
        if isinstance(workflow, Graph):  # that of a workflow was checked when it was traced
            check_given(graph, types)
        self._learn(graph, {})
        for name in started_by(graph):
            if (started := self.workflow(name)) is not None:
                _ = started.graph  # what is wrong with it is told before anything is started
        if unless is not None:
            await unless()
        source = self._places(types, graph) if isinstance(workflow, Graph) else _where([workflow.source])
        version, outline = await _both(
            self._store.save_version(graph.name, content_hash(graph), graph_to_json(graph), source, at=at),
            self._outlined_meanwhile(graph, types),
        )
        prepared = outline.of(version)
        prepared.source = source
        self._keep(prepared)
        self._saved[id(graph)] = prepared
        _trim(self._saved)
        self._learn(graph, prepared.types)
        return prepared

    async def load(self, run_id: RunId, workflow: str, version: int) -> Prepared:
        """Return a saved version, prepared. Raises TypesChanged if its node types are all here and no longer fit."""
        key = (workflow, version)
        if (known := self._prepared.get(key)) is not None:
            return known
        prepared = await self.read(run_id, workflow, version)
        if not prepared.missing:
            if faults := validate(prepared.graph, prepared.types):
                raise TypesChanged(run_id, workflow, version, faults)
            self._keep(prepared)
        return prepared

    async def saved(self, run_id: RunId, workflow: str, version: int) -> Prepared:
        """Return a saved version of which a run is to be started. Raises VersionNotFound, or TypesMissing or TypesChanged if it
        cannot be run here."""
        key = (workflow, version)
        if key not in self._prepared and await self._store.load_version(*key) is None:
            raise VersionNotFound(*key)
        prepared = await self.load(run_id, *key)
        if prepared.missing:
            raise TypesMissing(run_id, prepared.missing.types, workflows=prepared.missing.workflows)
        return prepared

    def forget(self, workflow: str, version: int) -> None:
        """Take note that a version may be gone from the store."""
        self._graphs.pop((workflow, version), None)
        self._prepared.pop((workflow, version), None)
        for known, prepared in list(self._saved.items()):
            if (prepared.version.workflow, prepared.version.version) == (workflow, version):
                del self._saved[known]

    async def graph(self, run_id: RunId, workflow: str, version: int) -> Graph:
        """Return the graph of a saved version. It never changes, and is not read again while it is in use."""
        key = (workflow, version)
        if (known := self._prepared.get(key)) is not None:
            return known.graph
        if (graph := self._graphs.get(key)) is None:
            graph = self._graphs[key] = (await self._saved_version(run_id, workflow, version))[1]
            _trim(self._graphs)
        return graph

    def knows_types_of(self, graph: Graph) -> bool:
        """Whether all node types of a graph are here."""
        types = self.types()
        return all(node.type in types for node in graph.nodes)

    async def read(self, run_id: RunId, workflow: str, version: int) -> Prepared:
        """Return a saved version as it is, whatever has become of its node types."""
        saved, graph = await self._saved_version(run_id, workflow, version)
        return self._prepare(saved, graph, self.types())

    async def _saved_version(self, run_id: RunId, workflow: str, version: int) -> tuple[WorkflowVersion, Graph]:
        saved = await self._store.load_version(workflow, version)
        if saved is None:
            raise JournalDamaged(run_id, f"version {version} of workflow {workflow!r} is not in the store")
        return saved, graph_from_json(saved.graph)

    async def _outlined_meanwhile(self, graph: Graph, types: Mapping[str, NodeType[..., Any]]) -> _Outline:
        await asyncio.sleep(0)  # what is done at the same time is on its way
        return self._outline(graph, types)

    def _prepare(self, version: WorkflowVersion, graph: Graph, types: Mapping[str, NodeType[..., Any]]) -> Prepared:
        return self._outline(graph, types).of(version)

    def _outline(self, graph: Graph, types: Mapping[str, NodeType[..., Any]]) -> _Outline:
        used = dict.fromkeys(node.type for node in graph.nodes)
        needed = {name: types[name] for name in used if name in types}
        for node_type in needed.values():
            self._codecs.know(*(handle.annotation for handle in (*node_type.inputs, *node_type.outputs)))
        missing = Missing(
            types=tuple(sorted(used.keys() - needed.keys())),
            workflows=tuple(name for name in started_by(graph) if self.workflow(name) is None),
        )
        return _Outline(graph, compile_plan(graph, needed), needed, missing)

    def _places(self, types: Mapping[str, NodeType[..., Any]], graph: Graph) -> dict[str, str]:
        """Return where the code of a graph was declared that was not itself declared anywhere."""
        own = [types[node.type].source for node in graph.nodes if node.type not in BUILT_IN]
        own += [started.source for name in started_by(graph) if (started := self.workflow(name)) is not None]
        return _where(list(dict.fromkeys(map(_module_of, own))))

    def _keep(self, prepared: Prepared) -> None:
        self._prepared[prepared.version.workflow, prepared.version.version] = prepared
        _trim(self._prepared)


async def _both(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Await two things at once. If one raises, that is raised when the other has ended, too."""
    found = await asyncio.gather(first, second, return_exceptions=True)
    for outcome in found:
        if isinstance(outcome, BaseException):
            raise outcome
    return cast("tuple[A, B]", tuple(found))


def _trim(kept: OrderedDict[Any, Any]) -> None:
    while len(kept) > MAX_PREPARED:
        kept.popitem(last=False)


def _module_of(source: Source) -> Source:
    return msgspec.structs.replace(source, qualname="")


def _where(sources: Sequence[Source]) -> dict[str, str]:
    """Return where to find node types again, for whoever continues a run. Several places are told a line each."""
    modules = "\n".join(source.module for source in sources)
    files = "\n".join(source.file or "" for source in sources)
    return {"module": modules, **({"file": files} if files.strip() else {})}
