"""What a node is said to have returned, as it is given on the command line."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import click
import msgspec

from perdure.cli.options import Place
from perdure.cli.program import load_types_of
from perdure.cli.saved import on_version
from perdure.cli.stores import opened
from perdure.cli.words import plain
from perdure.engine.inspect import find_run, load_graph, load_run
from perdure.engine.starting.inputs import words_for
from perdure.errors import PerdureError
from perdure.graph.constants import from_json
from perdure.graph.declare import NodeType, declared_types
from perdure.graph.handles import Outputs
from perdure.graph.model import DEFAULT_OUTPUT, Graph
from perdure.journal.states import RunState


async def read_output(
    run: str, node: str, text: str | None, imports: Iterable[str], place: Place, *, version: str | None = None
) -> Any:
    """Return what a JSON text stands for as the node's body would have returned it: a model, an enum, several outputs. No text
    is the same as null.

    Where the node's code is not at hand, it is what JSON has for it, and standard error says so unless it is null.
    """
    value = None if text is None else _parsed(text)
    async with opened(place) as store:
        state = (await load_run(store, await find_run(store, run))).run
        if version is None:
            graph = await load_graph(store, state)
        else:
            state, graph = await on_version(state, version, store)
    if graph is None or node not in {known.id for known in graph.nodes}:
        return value  # whoever is told of it says what is wrong
    node_type = _type_of(node, state, graph, imports, may_be_unknown=value is None)
    if node_type is None:
        return value
    if text is None:
        _require_nothing(node, node_type)
        return None
    return _as_returned(node, text, node_type)


def _parsed(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        quoted = shlex.quote(msgspec.json.encode(text).decode())
        raise click.UsageError(f"--output is not JSON: {error}. If it is a text, quote it: --output {quoted}") from None


def _type_of(
    node: str, run: RunState, graph: Graph, imports: Iterable[str], *, may_be_unknown: bool
) -> NodeType[..., Any] | None:
    name = next(known.type for known in graph.nodes if known.id == node)
    try:
        load_types_of(run, graph, imports)
    except PerdureError as error:
        if name in declared_types():
            return declared_types()[name]
        if may_be_unknown:
            return None
        if imports or {edge.source_handle for edge in graph.edges if edge.source == node} - {DEFAULT_OUTPUT}:
            raise  # outputs that have names cannot be told from one that is an object
        click.echo(
            f"perdure: the output is kept as plain JSON, because the node's code is not at hand. {error}", err=True
        )
    return declared_types().get(name)


def _require_nothing(node: str, node_type: NodeType[..., Any]) -> None:
    """Refuse to leave out what the node would have returned, if that is not nothing."""
    handles = {handle.name: handle.annotation for handle in node_type.outputs}
    if handles.keys() != {DEFAULT_OUTPUT}:
        if handles:
            _named(node, "null", handles)
        return
    try:
        from_json(b"null", handles[DEFAULT_OUTPUT])
    except ValueError:
        raise click.UsageError(
            f"--output is missing: node {plain(node)} returns {words_for(handles[DEFAULT_OUTPUT])}. Give what it would have "
            "returned, as JSON."
        ) from None


def _as_returned(node: str, text: str, node_type: NodeType[..., Any]) -> Any:
    handles = {handle.name: handle.annotation for handle in node_type.outputs}
    if handles.keys() == {DEFAULT_OUTPUT}:
        return _fitted(node, "", text.encode(), handles[DEFAULT_OUTPUT])
    named = _named(node, text, handles)
    if unknown := named.keys() - handles if not node_type.open_outputs else ():
        raise click.UsageError(
            f"node {plain(node)} has no output {', '.join(map(repr, sorted(unknown)))}: it has {', '.join(handles)}."
        )
    return Outputs(
        **{name: _fitted(node, f" {name!r}", bytes(raw), handles.get(name, Any)) for name, raw in named.items()}
    )


def _named(node: str, text: str, handles: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        some = f" ({', '.join(handles)})" if handles else ""
        raise click.UsageError(
            f"node {plain(node)} has outputs with names{some}: give them with --output as a JSON object."
        ) from None


def _fitted(node: str, which: str, text: bytes, annotation: Any) -> Any:
    try:
        return from_json(text, annotation)
    except ValueError as error:
        raise click.UsageError(
            f"--output{which} is not what node {plain(node)} returns: {error} (it returns {words_for(annotation)})."
        ) from None
