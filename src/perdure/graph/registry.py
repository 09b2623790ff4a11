"""Which node types there are, by name: those that this process has declared, and those that come with perdure.

A type that comes with perdure is declared when somebody first asks for it: its module is imported then. So a graph that is only
a file can use it, and a program that does not use it does not load it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from perdure.graph.model import BUILT_IN

if TYPE_CHECKING:
    from perdure.graph.declare import NodeType

_declared: dict[str, NodeType[..., Any]] = {}
_modules: dict[str, str] = {}


class KnownTypes(Mapping[str, "NodeType[..., Any]"]):
    """Node types by name: some of one's own, and all that come with perdure. To ask whether there is one imports nothing."""

    def __init__(self, own: Mapping[str, NodeType[..., Any]]) -> None:
        self._own = own

    def __getitem__(self, name: str) -> NodeType[..., Any]:
        if name not in self._own and name in BUILT_IN:
            return _built_in(name)
        return self._own[name]

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in BUILT_IN

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from sorted(BUILT_IN - self._own.keys())

    def __len__(self) -> int:
        return len(self._own.keys() | BUILT_IN)


def declared_types() -> Mapping[str, NodeType[..., Any]]:
    """Return the node types that this process has declared, and those that come with perdure, by name. Of one name, the last
    that was declared counts."""
    return KnownTypes(_declared)


def add_type(node_type: NodeType[..., Any]) -> None:
    """Take note of a node type that is declared."""
    _declared[node_type.name] = node_type


def declared_in(modules: Mapping[str, str]) -> None:
    """Say which modules declare which of the types that come with perdure."""
    _modules.update(modules)


def _built_in(name: str) -> NodeType[..., Any]:
    if name not in _declared:
        import_module(_modules[name])
    return _declared[name]
