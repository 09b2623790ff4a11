"""Orders, cycles and reach, compared with what the definitions say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.graph.topology import cycles, reachable_from, topological_order


@st.composite
def digraphs(draw: st.DrawFn) -> list[list[int]]:
    size = draw(st.integers(0, 12))
    if size == 0:
        return []
    pairs = draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=30))
    successors: list[list[int]] = [[] for _ in range(size)]
    for source, target in pairs:
        if source != target:
            successors[source].append(target)
    return successors


@given(digraphs())
def test_an_order_puts_sources_before_targets(successors: list[list[int]]):
    order = topological_order(successors)
    place = {node: index for index, node in enumerate(order)}

    assert len(place) == len(order)
    for node in order:
        assert all(place[node] < place[target] for target in successors[node] if target in place)
    for node in set(range(len(successors))) - set(order):
        assert any(node in successors[other] for other in range(len(successors)) if other not in place)


@given(digraphs())
def test_every_knot_is_found_and_shown_as_a_cycle(successors: list[list[int]]):
    nodes = range(len(successors))
    reach = {node: reachable_from(successors, successors[node]) for node in nodes}
    knots = {frozenset(other for other in nodes if other in reach[node] and node in reach[other]) for node in nodes}
    knots.discard(frozenset())

    found = cycles(successors, nodes)

    for cycle in found:
        assert len(set(cycle)) == len(cycle) > 1
        assert all(after in successors[before] for before, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    assert len(found) == len(knots)
    assert all(any(set(cycle) <= knot for cycle in found) for knot in knots)
    assert bool(found) == (len(topological_order(successors)) < len(successors))


def test_long_chains_do_not_recurse():
    size = 50_000
    chain = [[node + 1] for node in range(size - 1)] + [[0]]

    assert topological_order(chain) == []
    assert len(cycles(chain, range(size))[0]) == size
    assert len(reachable_from(chain, [7])) == size
