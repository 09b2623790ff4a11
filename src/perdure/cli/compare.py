"""`perdure diff`: a run beside its own past, or beside another run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from perdure.cli.exits import Exit
from perdure.cli.options import Place, awaited, json_option, place_in_log, print_json, store_option
from perdure.cli.stores import opened
from perdure.cli.terminal import Paper, paper
from perdure.cli.words import cells, counted, error_line, fitted, padded, plain, value_line
from perdure.engine.inspect import find_run, load_graph, load_run
from perdure.engine.stored.past import difference, end_of_branch, seq_of, stored_at
from perdure.errors import ProgramError
from perdure.ids import NodeId, RunId
from perdure.journal.compare import Difference, NodeDifference
from perdure.journal.events import Encoded
from perdure.journal.states import NodeState, NodeStatus
from perdure.store.base import Store
from perdure.store.shapes import StoredRun

MOST_VALUE = 40
"""How much of a value is shown."""


@click.command("diff")
@click.argument("run", metavar="RUN")
@click.argument("other", metavar="[OTHER]", required=False)
@click.option("--at", "place", metavar="PLACE", help="RUN as it was: an event's number, or a checkpoint's name.")
@click.option("--branch", type=int, metavar="N", help="RUN as it was at the end of this line of history.")
@click.option("--other-at", "other_place", metavar="PLACE", help="As --at, for OTHER, or for RUN itself without one.")
@click.option("--other-branch", type=int, metavar="N", help="As --branch, for OTHER, or for RUN itself without one.")
@store_option
@json_option
@awaited
async def diff_command(
    run: str,
    other: str | None,
    place: str | None,
    branch: int | None,
    other_place: str | None,
    other_branch: int | None,
    store: Place,
    as_json: bool,
) -> int:
    """Compare a run with its own past, or with OTHER: node by node, and where they first differ.

    Without options, a run is compared with the line of history from which its own comes. Times and attempts do not count.

    \b
      perdure diff 0198f2
      perdure diff 0198f2 --branch 1 --other-branch 3
      perdure diff 0198f2 --at before-review
      perdure diff 0198f2 0198f7
    """
    if (place is not None and branch is not None) or (other_place is not None and other_branch is not None):
        raise click.UsageError("--at and --branch do not go together: each says which moment is meant.")
    async with opened(store) as source:
        run_id = await find_run(source, run)
        other_id = run_id if other is None else await find_run(source, other)
        if other is None and place is None and branch is None and other_place is None and other_branch is None:
            branch = await _parent(source, run_id)
        one = await _side(source, run_id, place, branch)
        two = await _side(source, other_id, other_place, other_branch)
        found = difference(one, two, await load_graph(source, one.run))
    if as_json:
        print_json({"first": None if found.first is None else found.first.node_id, **_document(found)})
    else:
        for line in _lines(found, one, two, paper()):
            click.echo(line)
    return Exit.DONE


async def _parent(store: Store, run_id: RunId) -> int:
    last = list(await store.list_branches(run_id))[-1]
    if last.parent is None:
        raise ProgramError(
            f"Run {run_id!r} has one line of history. Name what to compare it with: another run, --at or --branch."
        )
    return last.parent


async def _side(store: Store, run_id: RunId, place: str | None, branch: int | None) -> StoredRun:
    if branch is not None:
        return await stored_at(store, run_id, await end_of_branch(store, run_id, branch))
    if place is None:
        return await load_run(store, run_id)
    return await stored_at(store, run_id, await seq_of(store, run_id, place_in_log(place)))


def _document(found: Difference) -> dict[str, Any]:
    return {
        "inputs": found.inputs,
        "outputs": found.outputs,
        "nodes": [
            {"node_id": node.node_id, "aspects": node.aspects, "one": _state(node.one), "other": _state(node.other)}
            for node in found.nodes
        ],
        "same": found.same,
    }


def _state(node: NodeState | None) -> dict[str, Any] | None:
    return None if node is None else {"status": node.status, "outputs": node.outputs, "error": node.error}


def _lines(found: Difference, one: StoredRun, two: StoredRun, sheet: Paper) -> Iterator[str]:
    pen = sheet.pen
    yield f"{_name(one)} {pen.faint('beside')} {_name(two)}"
    if found.is_none:
        yield f"{pen.good('=')} no difference"
        return
    width = max((cells(plain(node.node_id)) for node in found.nodes), default=0)
    for name in found.inputs:
        yield fitted(f"≠ input {plain(name)}: {_change(one.run.inputs, two.run.inputs, name)}", sheet.width)
    for node in found.nodes:
        words = "; ".join(_words(node, one, two))
        yield fitted(f"≠ {padded(plain(node.node_id), width)}  {words}", sheet.width)
    for name in found.outputs:
        change = _change(one.run.outputs or {}, two.run.outputs or {}, name)
        yield fitted(f"≠ output {plain(name)}: {change}", sheet.width)
    if found.same:
        yield pen.faint(f"= {counted(len(found.same), 'node')} the same")


def _name(stored: StoredRun) -> str:
    run = stored.run
    return f"{plain(run.run_id)} (branch {run.branch_id}, event {run.last_seq}, {run.status.value})"


def _words(node: NodeDifference, one: StoredRun, two: StoredRun) -> Iterator[str]:
    left, right = node.one, node.other
    if "status" in node.aspects:
        yield f"{_status(left)} → {_status(right)}"
    if "given" in node.aspects:
        yield f"given {_given(one, node.node_id)} → {_given(two, node.node_id)}"
    if "outputs" in node.aspects:
        before = {} if left is None else left.outputs or {}
        after = {} if right is None else right.outputs or {}
        for name in dict.fromkeys([*before, *after]):
            if before.get(name) != after.get(name):
                yield _change(before, after, name)
    if "error" in node.aspects:
        yield f"{_error(left)} → {_error(right)}"


def _status(node: NodeState | None) -> str:
    return (NodeStatus.IDLE if node is None else node.status).value


def _error(node: NodeState | None) -> str:
    return "no error" if node is None or node.error is None else error_line(node.error)


def _given(stored: StoredRun, node_id: NodeId) -> str:
    given = stored.given.get(node_id, {})
    return ", ".join(f"{plain(name)} = {_short(value)}" for name, value in given.items()) or "nothing else"


def _change(before: Mapping[str, Encoded], after: Mapping[str, Encoded], name: str) -> str:
    return f"{_short(before.get(name))} → {_short(after.get(name))}"


def _short(value: Encoded | None) -> str:
    return "nothing" if value is None else fitted(value_line(value), MOST_VALUE)
