"""A run as it is stored, and what can be wrong with it: what the checks of `verify` look at and say."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perdure.graph.plan import Plan
from perdure.ids import BranchId, EngineId, Epoch, NodeId, Seq
from perdure.journal import events as e
from perdure.journal.states import BranchState, CheckpointState, NodeState, RunState, SignalState, WaitState
from perdure.journal.steps import StepKey


class KeptEntries(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Entries of a stream at consecutive positions, as they are kept in one row."""

    node_id: NodeId
    branch_id: BranchId
    position: int
    count: int
    seq: Seq
    content: bytes


class Mark(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event of the log without what it says."""

    seq: Seq
    branch_id: BranchId
    epoch: Epoch
    type: str


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is stored about one run, from one snapshot."""

    run: RunState
    owner: EngineId | None
    events: tuple[e.Recorded, ...]
    nodes: tuple[NodeState, ...]
    steps: dict[StepKey, e.Encoded]
    version_hash: str | None
    """The hash of the version that the run follows; None if that version is gone."""
    plan: Plan | None
    earlier: Mapping[str, Plan] = {}
    """By their hashes: what the run has followed before, as far as that is there."""
    waits: tuple[WaitState, ...] = ()
    """On the branch on which the run is."""
    signals: tuple[SignalState, ...] = ()
    checkpoints: tuple[CheckpointState, ...] = ()
    """Of every branch, in the order in which they were saved."""
    branches: tuple[BranchState, ...] = ()
    """In the order in which they were created."""
    kept: tuple[KeptEntries, ...] = ()
    """Entries of streams, of every branch."""
    lost_blobs: tuple[str, ...] = ()
    """Digests of blobs that the run refers to and that cannot be read."""
    unused_blobs: tuple[str, ...] = ()
    """Digests of blobs to which values of the run refer and that are not recorded as used by it: they could be collected."""

    @property
    def activated(self) -> frozenset[BranchId]:
        """The branches on which the run has gone on, without the first one."""
        return frozenset(entry.event.branch_id for entry in self.events if isinstance(entry.event, e.BranchActivated))

    @property
    def current_nodes(self) -> list[NodeState]:
        """The nodes on the branch on which the run is."""
        return [node for node in self.nodes if node.branch_id == self.run.branch_id]


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """Something that must not be."""

    invariant: str
    problem: str


def violation(invariant: str, problem: str) -> Violation:
    return Violation(invariant=invariant, problem=problem)
