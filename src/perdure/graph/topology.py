"""The shape of a directed graph: orders, cycles, reach. Nodes are numbers from 0; nothing here recurses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Successors = Sequence[Sequence[int]]


def topological_order(successors: Successors) -> list[int]:
    """Return the nodes, each after those it depends on (Kahn). Those on or behind a cycle are left out."""
    waiting = [0] * len(successors)
    for targets in successors:
        for target in targets:
            waiting[target] += 1
    order = [node for node, count in enumerate(waiting) if count == 0]
    for node in order:  # grows while it is read
        for target in successors[node]:
            waiting[target] -= 1
            if waiting[target] == 0:
                order.append(target)
    return order


def reachable_from(successors: Successors, starts: Iterable[int]) -> set[int]:
    """Return the starts and everything that can be reached from them."""
    reached = set(starts)
    pending = list(reached)
    while pending:
        for target in successors[pending.pop()]:
            if target not in reached:
                reached.add(target)
                pending.append(target)
    return reached


def cycles(successors: Successors, among: Iterable[int]) -> list[list[int]]:
    """Return one shortest cycle for each knot, a set of nodes that all reach each other, among the given nodes."""
    members = set(among)
    knots = sorted((knot for knot in _knots(successors, members) if len(knot) > 1), key=min)
    return [_shortest_cycle(successors, knot) for knot in knots]


def _knots(successors: Successors, members: set[int]) -> list[set[int]]:
    """Return the strongly connected components (Tarjan, with a stack of its own)."""
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    open_nodes: list[int] = []
    is_open: set[int] = set()
    found: list[set[int]] = []
    for root in sorted(members):
        if root in number:
            continue
        path = [(root, iter(successors[root]))]
        number[root] = lowest[root] = len(number)
        open_nodes.append(root)
        is_open.add(root)
        while path:
            node, targets = path[-1]
            target = next((target for target in targets if target in members), None)
            if target is None:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
                if lowest[node] == number[node]:
                    found.append(_close(node, open_nodes, is_open))
            elif target not in number:
                number[target] = lowest[target] = len(number)
                open_nodes.append(target)
                is_open.add(target)
                path.append((target, iter(successors[target])))
            elif target in is_open:
                lowest[node] = min(lowest[node], number[target])
    return found


def _close(root: int, open_nodes: list[int], is_open: set[int]) -> set[int]:
    knot: set[int] = set()
    while root not in knot:
        node = open_nodes.pop()
        is_open.discard(node)
        knot.add(node)
    return knot


def _shortest_cycle(successors: Successors, knot: set[int]) -> list[int]:
    """Return a shortest cycle through the first node of a knot, which stands at its start and not again at its end."""
    start = min(knot)
    came_from: dict[int, int] = {}
    pending = [start]
    for node in pending:  # grows while it is read
        for target in successors[node]:
            if target == start:
                path = [node]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if target in knot and target not in came_from:
                came_from[target] = node
                pending.append(target)
    raise AssertionError("every node of a knot lies on a cycle")
