"""What an engine offers for versions of workflows: saving them, naming them by aliases, moving those, and taking a move back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from perdure.clock import Clock, from_micros
from perdure.engine.driving.catalogue import Catalogue
from perdure.errors import AliasMoved, AliasNotFound, NothingToRollBack, VersionInUse, VersionNotFound
from perdure.graph.aliases import LATEST, alias_problem, checked_targets
from perdure.graph.declare import Workflow
from perdure.graph.differing import GraphDifference, differ
from perdure.graph.forms import graph_from_json
from perdure.graph.model import Graph
from perdure.store.base import Store
from perdure.store.shapes import AliasMove, AliasState, Kept, WorkflowVersion

Named = Workflow[..., Any] | Graph | str
"""A workflow, or its name."""

TRIES = 20
"""How often an alias is moved again that others move at the same time."""
_WHY_KEPT: dict[Kept, str] = {
    "newest": "it is the newest one, whose number would be given again.",
    "aliased": "an alias points at it. Move the alias, or remove it.",
    "used": "runs refer to it. They could not be read or continued without it.",
}


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A saved version of a workflow."""

    workflow: str
    version: int
    graph_hash: str
    saved_at: datetime
    aliases: tuple[str, ...] = ()
    """Those that point at it, alone or among others."""
    runs: int = 0
    """How many runs refer to it."""


class Alias(msgspec.Struct, frozen=True, kw_only=True):
    """Where an alias points."""

    workflow: str
    name: str
    targets: dict[int, int]
    """Weights by version."""
    follows: bool = False
    """Whether it means the newest version, whichever that is: `latest`, unless somebody has pinned it."""
    revision: int = 0
    """How often it was moved."""
    moved_at: datetime | None = None


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A move of an alias, in its history."""

    revision: int
    targets: dict[int, int]
    """Weights by version; none if it was removed."""
    at: datetime
    restores: int | None
    """The move that a rollback has brought back."""


class Versions(ABC):
    """The part of an engine that has to do with versions."""

    clock: Clock
    _catalogue: Catalogue

    @property
    @abstractmethod
    def store(self) -> Store: ...

    async def save(self, workflow: Workflow[..., Any] | Graph) -> Version:
        """Save a workflow under its name, without starting anything, and return its version: the one that is there, if the same
        graph was saved before. Raises InvalidGraph with all that is wrong."""
        store = self.store
        saved = (await self._catalogue.save(workflow, at=self.clock.now_micros())).version
        if await store.load_version(saved.workflow, saved.version) is None:  # somebody has deleted it since
            self._catalogue.forget(saved.workflow, saved.version)
            saved = (await self._catalogue.save(workflow, at=self.clock.now_micros())).version
        found = await load_versions(store, saved.workflow)
        return next(version for version in found if version.version == saved.version)

    async def versions(self, workflow: Named | None = None) -> Sequence[Version]:
        """Return the saved versions of a workflow, oldest first; without one, those of all, by name."""
        return await load_versions(self.store, None if workflow is None else _name(workflow))

    async def delete_version(self, workflow: Named, version: int) -> None:
        """Delete a version to which nothing refers. Raises VersionInUse if runs or an alias do, or if it is the newest one."""
        name = _name(workflow)
        kept = await self.store.delete_version(name, version)
        if kept == "missing":
            raise VersionNotFound(name, version)
        if kept is not None:
            raise VersionInUse(name, version, _WHY_KEPT[kept])
        self._catalogue.forget(name, version)

    async def diff_versions(self, workflow: Named, one: int, other: int) -> GraphDifference:
        """Return how two versions of a workflow differ."""
        name = _name(workflow)
        store = self.store
        return differ(await load_saved_graph(store, name, one), await load_saved_graph(store, name, other))

    async def alias(
        self, workflow: Named, alias: str, to: int | Mapping[int, int], *, revision: int | None = None
    ) -> Alias:
        """Have an alias point at a version, or at several with weights (`{3: 90, 4: 10}`), and return it. Runs that are started
        by its name from then on get what it points at; those that are there stay where they are.

        With `revision`, only if the alias has been moved so often: else AliasMoved is raised. A `latest` that was moved so is
        pinned until it is removed. Raises VersionNotFound if one of the versions is not there.
        """
        return await self._move(_name(workflow), _checked(alias), checked_targets(to), revision=revision)

    async def aliases(self, workflow: Named) -> Sequence[Alias]:
        """Return the aliases of a workflow by name, but first `latest`, which is always there. Raises VersionNotFound for a
        workflow that is not known."""
        return await load_aliases(self.store, _name(workflow))

    async def remove_alias(self, workflow: Named, alias: str, *, revision: int | None = None) -> None:
        """Remove an alias, so that no run can be started by its name; `latest` follows the newest version again. Raises
        AliasNotFound if it is not there, and AliasMoved as `alias` does."""
        name = _name(workflow)
        if alias not in {found.alias for found in await self.store.list_aliases(name)}:
            raise AliasNotFound(name, alias, [known.name for known in await self.aliases(name)])
        await self._move(name, alias, {}, revision=revision)

    async def rollback(self, workflow: Named, alias: str) -> Alias:
        """Move an alias back to where it pointed before, and return it. Doing so again goes back further. Raises
        NothingToRollBack if it has not pointed anywhere else, and AliasNotFound if there never was one."""
        name = _name(workflow)
        for _ in range(TRIES):
            moves = await self._moves(name, alias)
            if not moves or (before := _before(moves)) is None:
                break
            moved = await self._moved(name, alias, _targets(moves, before), after=len(moves), restores=before)
            if moved is not None:
                return moved
        else:
            raise AliasMoved(name, alias)
        raise NothingToRollBack(name, alias)

    async def alias_moves(self, workflow: Named, alias: str) -> Sequence[Move]:
        """Return where an alias has pointed, oldest first. The last move says where it points. Raises AliasNotFound if there
        never was one."""
        return [_move_of(move) for move in await self._moves(_name(workflow), alias)]

    async def _moves(self, name: str, alias: str) -> Sequence[AliasMove]:
        moves = await self.store.list_alias_moves(name, alias)
        if not moves and alias not in (known := [found.name for found in await self.aliases(name)]):
            raise AliasNotFound(name, alias, known)
        return moves

    async def _move(self, name: str, alias: str, targets: dict[int, int], *, revision: int | None) -> Alias:
        for _ in range(TRIES):
            state = await self.store.load_alias(name, alias)
            seen = 0 if state.move is None else state.move.revision
            if revision not in (None, seen):
                break
            if (moved := await self._moved(name, alias, targets, after=seen)) is not None:
                return moved
        raise AliasMoved(name, alias)

    async def _moved(
        self, name: str, alias: str, targets: dict[int, int], *, after: int, restores: int | None = None
    ) -> Alias | None:
        """Move an alias once; None if somebody else was faster."""
        move = AliasMove(
            workflow=name,
            alias=alias,
            revision=after + 1,
            targets=targets,
            moved_at=self.clock.now_micros(),
            restores=restores,
        )
        if not await self.store.move_alias(move):
            return None
        newest = (await self.store.load_alias(name, alias)).newest
        return alias_of(name, alias, AliasState(move=move, newest=newest))


async def load_versions(store: Store, workflow: str | None = None) -> list[Version]:
    """Return the saved versions of a workflow, oldest first, or of all, by name. Raises VersionNotFound if it has none."""
    saved = await store.list_versions(workflow)
    if not saved and workflow is not None:
        raise VersionNotFound(workflow, None)
    found: list[Version] = []
    for name in dict.fromkeys(version.workflow for version in saved):
        runs, aliases = await store.count_runs(name), await load_aliases(store, name)
        found += [_version_of(version, runs, aliases) for version in saved if version.workflow == name]
    return found


async def load_aliases(store: Store, workflow: str) -> list[Alias]:
    """Return the aliases of a workflow by name, `latest` first. Raises VersionNotFound if the workflow is not known."""
    latest = await store.load_alias(workflow, LATEST)
    if latest.newest is None:
        raise VersionNotFound(workflow, None)
    others = [move for move in await store.list_aliases(workflow) if move.alias != LATEST]
    states = [AliasState(move=move, newest=latest.newest) for move in others]
    return [
        alias_of(workflow, LATEST, latest),
        *(alias_of(workflow, move.alias, state) for move, state in zip(others, states, strict=True)),
    ]


async def load_saved_graph(store: Store, workflow: str, version: int) -> Graph:
    """Return the graph of a version. Raises VersionNotFound."""
    saved = await store.load_version(workflow, version)
    if saved is None:
        raise VersionNotFound(workflow, version)
    return graph_from_json(saved.graph)


def targets_of(alias: str, state: AliasState) -> dict[int, int]:
    """Return the weights by version of an alias; none if it means nothing. `latest` means the newest version if it is not set."""
    if state.move is not None and state.move.targets:
        return state.move.targets
    return {state.newest: 1} if alias == LATEST and state.newest is not None else {}


def alias_of(workflow: str, alias: str, state: AliasState) -> Alias:
    """Return an alias as users see it."""
    move = state.move
    return Alias(
        workflow=workflow,
        name=alias,
        targets=targets_of(alias, state),
        follows=alias == LATEST and (move is None or not move.targets),
        revision=0 if move is None else move.revision,
        moved_at=None if move is None else from_micros(move.moved_at),
    )


def _version_of(saved: WorkflowVersion, runs: Mapping[int, int], aliases: Sequence[Alias]) -> Version:
    return Version(
        workflow=saved.workflow,
        version=saved.version,
        graph_hash=saved.graph_hash,
        saved_at=from_micros(saved.created_at),
        aliases=tuple(alias.name for alias in aliases if saved.version in alias.targets),
        runs=runs.get(saved.version, 0),
    )


def _move_of(move: AliasMove) -> Move:
    return Move(revision=move.revision, targets=move.targets, at=from_micros(move.moved_at), restores=move.restores)


def _before(moves: Sequence[AliasMove]) -> int | None:
    """Return the move to go back to: the one before that whose targets the alias has, but none that took it away. 0 is before
    all moves, where only `latest` meant something."""
    found = _origin(moves[-1]) - 1
    while found > 0:
        move = moves[found - 1]
        if move.targets or move.alias == LATEST:
            return _origin(move)
        found -= 1
    return 0 if found == 0 and moves[-1].alias == LATEST else None


def _origin(move: AliasMove) -> int:
    return move.revision if move.restores is None else move.restores


def _targets(moves: Sequence[AliasMove], revision: int) -> dict[int, int]:
    return moves[revision - 1].targets if revision else {}


def _name(workflow: Named) -> str:
    return workflow if isinstance(workflow, str) else workflow.name


def _checked(alias: str) -> str:
    if (problem := alias_problem(alias)) is not None:
        raise ValueError(problem)
    return alias
