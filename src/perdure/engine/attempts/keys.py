"""The key under which the outside world knows what a node does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perdure.ids import RunId
from perdure.journal.flow import item_generation
from perdure.journal.states import NodeState


def idempotency_key(run_id: RunId, node: NodeState) -> str:
    """Return what is the same for every attempt at a node, and for nothing else."""
    return f"{_escaped(run_id)}/{_escaped(node.node_id)}/{node.generation}"


def item_keys(run_id: RunId, node: NodeState) -> Callable[[int, str], str]:
    """Return what gives the key of an item, by its position and its name: the same for every attempt at it, and for nothing
    else."""
    key = idempotency_key(run_id, node)
    if node.stream is None or not node.stream.chosen:
        return lambda _, item: f"{key}/{item}"
    begin, base = f"{_escaped(run_id)}/{_escaped(node.node_id)}", node.stream.base
    chosen = {
        position: generation
        for first, count, generation in node.stream.chosen
        for position in range(first, first + count)
    }
    return lambda position, item: f"{begin}/{chosen.get(position, base)}/{item}"


def item_name(position: int, consumed: Mapping[str, int]) -> str:
    """Return what an item is called, whenever and by whomever it is tried: by its position, or where that depends on what comes
    first, by how much of each stream was taken for it."""
    if not consumed:
        return str(position)
    return "+".join(f"{_escaped(handle)}{count - 1}" for handle, count in consumed.items())


def wait_key(run_id: RunId, node: NodeState, number: int) -> str:
    """Return what a wait of a node is known by, everywhere: people answer questions by it."""
    which = str(number) if node.generation == 1 else f"{node.generation}.{number}"
    return f"{_escaped(run_id)}/{_escaped(node.node_id)}/{which}"


def keys_begin_with(run_id: RunId) -> str:
    """Return how the keys of everything in a run begin."""
    return f"{_escaped(run_id)}/"


def started_run_id(run_id: RunId, node: NodeState, item: str, position: int | None = None) -> RunId:
    """Return the id of the run that a node starts for an item: the same for every attempt at it, and for nothing else.

    It begins with the id of the run that starts it. There is no slash in it, which would be escaped in the ids of its questions.
    """
    generation = node.generation if position is None else item_generation(node, position)
    which = item if generation == 1 else f"{generation}.{item}"
    # Read from its end, it is clear where the node's name begins, whatever the run is called.
    return RunId(f"{run_id}:{_without_colons(node.node_id)}:{_without_colons(which)}")


def _without_colons(name: str) -> str:
    return name.replace("%", "%25").replace(":", "%3A")


def _escaped(name: str) -> str:
    """Return a name in which no slash is left, and that no other name gives: keys made of several do not collide."""
    return name.replace("%", "%25").replace("/", "%2F")
