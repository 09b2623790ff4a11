"""The command about versions of workflows: `versions` lists them, and saves, compares, checks and deletes them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import click

from perdure.cli.exits import Exit
from perdure.cli.options import (
    Place,
    WholeNumber,
    awaited,
    imports_option,
    json_option,
    print_json,
    store_option,
    users_output,
)
from perdure.cli.program import load_program, load_types_for, require_valid
from perdure.cli.stores import opened, require
from perdure.cli.tables import print_table
from perdure.cli.terminal import Pen, paper
from perdure.cli.words import counted, day_and_time, plain
from perdure.engine.engine import Engine
from perdure.engine.inspect import find_run
from perdure.engine.starting.versions import Version, load_saved_graph, load_versions
from perdure.errors import ProgramError, TypesMissing
from perdure.graph.differing import GraphDifference, NodeChange, differ
from perdure.graph.forms import graph_from_json
from perdure.graph.model import Edge
from perdure.journal.compatible import Compatibility, NodeOutlook

LIST = "list"
_MARKS = {"kept": "=", "again": "↻", "to_come": "·", "left": "−", "impossible": "✗"}
_WORDS = {"kept": "kept", "again": "runs again", "to_come": "to come", "left": "left", "impossible": "impossible"}

workflow_argument = click.argument("workflow", metavar="WORKFLOW")


class _Versions(click.Group):
    """Lists unless it is told otherwise: `perdure versions WORKFLOW` is short for `perdure versions list WORKFLOW`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_other = bool(args) and (args[0] in self.commands or args[0] in self.get_help_option_names(ctx))
        return super().parse_args(ctx, args if is_other else [LIST, *args])


@click.group("versions", cls=_Versions)
def versions_command() -> None:
    """List the versions of workflows, save one, compare two, see if a run could follow another, and delete one.

    Without a word, or with the name of a workflow, it lists: `perdure versions list --help` has the options.

    \b
      perdure versions
      perdure versions digest
      perdure versions save flow.py:digest
      perdure versions diff digest 3 4
      perdure versions check 0198f2 4
    """


@versions_command.command(LIST)
@click.argument("workflow", metavar="[WORKFLOW]", required=False)
@store_option
@json_option
@awaited
async def list_command(workflow: str | None, store: Place, as_json: bool) -> int:
    """List saved versions, of one WORKFLOW or of all, with the aliases that point at them and how many runs follow them.

    \b
      perdure versions
      perdure versions digest --json
    """
    async with opened(store) as source:
        found = await load_versions(source, workflow)
    if as_json:
        print_json(found)
    elif not found:
        click.echo("No versions.")
    else:
        rows = [
            (
                plain(version.workflow),
                str(version.version),
                str(version.runs),
                ", ".join(version.aliases),
                day_and_time(int(version.saved_at.timestamp() * 1_000_000)),
                version.graph_hash[:12],
            )
            for version in found
        ]
        print_table(("WORKFLOW", "VERSION", "RUNS", "ALIASES", "SAVED", "CONTENT"), rows, paper(), right=(1, 2))
    return Exit.DONE


@versions_command.command("save")
@click.argument("target", metavar="FILE[:WORKFLOW]")
@imports_option
@store_option
@json_option
def save_command(target: str, imports: Sequence[str], store: Place, as_json: bool) -> int:
    """Save a workflow without running it. The same graph keeps the version that it has.

    \b
      perdure versions save flow.py:digest
      perdure versions save graph.yaml --import nodes.py
    """
    with users_output(as_json=as_json):
        program = load_program(target, imports)
        require_valid(program)

        async def save() -> Version:
            async with Engine(store.url, recover=False) as engine:
                return await engine.save(program)

        saved = asyncio.run(save())
    if as_json:
        print_json(saved)
    else:
        click.echo(f"{plain(saved.workflow)}, version {saved.version}")
    return Exit.DONE


@versions_command.command("diff")
@workflow_argument
@click.argument("one", type=WholeNumber(min=1))
@click.argument("other", type=WholeNumber(min=1))
@store_option
@json_option
@awaited
async def diff_command(workflow: str, one: int, other: int, store: Place, as_json: bool) -> int:
    """Compare two versions of a workflow: nodes that were added, removed and changed, and in what.

    \b
      perdure versions diff digest 3 4
    """
    async with opened(store) as source:
        graphs = [await load_saved_graph(source, workflow, version) for version in (one, other)]
    found = differ(*graphs)
    if as_json:
        print_json(found)
    else:
        for line in _difference(found, paper().pen):
            click.echo(line)
    return Exit.DONE


@versions_command.command("check")
@click.argument("run", metavar="RUN")
@click.argument("version", type=WholeNumber(min=1))
@imports_option
@store_option
@json_option
def check_command(run: str, version: int, imports: Sequence[str], store: Place, as_json: bool) -> int:
    """Say whether a run could go on on another version of its workflow, node by node. Ends with 1 if it could not.

    The code of the nodes says what must not run twice. It is taken from where the version was saved, if that is below the
    current folder, or from --import. Nothing is changed.

    \b
      perdure versions check 0198f2 4
    """
    require(store)
    with users_output(as_json=as_json):
        report = asyncio.run(_report(run, version, imports, store))
    if as_json:
        print_json({"possible": report.is_possible, "reasons": report.reasons, **_document(report)})
    else:
        for line in _outlook(report, paper().pen):
            click.echo(line)
    return Exit.DONE if report.is_possible else Exit.FAILED


@versions_command.command("delete")
@workflow_argument
@click.argument("version", type=WholeNumber(min=1))
@store_option
@json_option
def delete_command(workflow: str, version: int, store: Place, as_json: bool) -> int:
    """Delete a version to which nothing refers. The newest one, and those that runs or aliases refer to, are kept.

    \b
      perdure versions delete digest 2
    """
    require(store)

    async def delete() -> None:
        async with Engine(store.url, workflows=(), recover=False) as engine:
            await engine.delete_version(workflow, version)

    asyncio.run(delete())
    if as_json:
        print_json({"workflow": workflow, "version": version, "deleted": True})
    else:
        click.echo(f"version {version} of {plain(workflow)} is deleted")
    return Exit.DONE


async def _report(run: str, version: int, imports: Sequence[str], place: Place) -> Compatibility:
    async with Engine(place.url, recover=False) as engine:
        handle = await engine.get(await find_run(engine.store, run))
        saved = await engine.store.load_version((await handle.state()).workflow, version)
        if saved is not None:
            # Without the code the report is more careful, and says so.
            with suppress(*(() if imports else (ProgramError, TypesMissing))):
                load_types_for(handle.run_id, saved, graph_from_json(saved.graph), imports)
        return await handle.compatibility(version)


def _difference(found: GraphDifference, pen: Pen) -> Iterator[str]:
    if found.is_none:
        yield f"{pen.good('=')} no difference"
        return
    for node_id in found.added:
        yield pen.good(f"+ {plain(node_id)}")
    for node_id in found.removed:
        yield pen.bad(f"− {plain(node_id)}")
    for change in found.changed:
        yield pen.warning(f"≠ {plain(change.node_id)}") + f"  {_change(change)}"
    for mark, edges in (("+", found.added_edges), ("−", found.removed_edges)):
        for edge in edges:
            yield f"{mark} {_edge(edge)}"
    for what, names in (("input", found.inputs), ("output", found.outputs)):
        for name in names:
            yield f"≠ {what} {plain(name)}"
    if found.same:
        yield pen.faint(f"= {counted(len(found.same), 'node')} the same")


def _change(change: NodeChange) -> str:
    return ", ".join(change.aspects) + (f": {', '.join(map(plain, change.handles))}" if change.handles else "")


def _edge(edge: Edge) -> str:
    part = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in edge.path)
    mode = f" ({edge.mode})" if edge.mode else ""
    source, target = f"{edge.source}.{edge.source_handle}{part}", f"{edge.target}.{edge.target_handle}"
    return f"{plain(source)} → {plain(target)}{mode}"


def _outlook(report: Compatibility, pen: Pen) -> Iterator[str]:
    head = f"version {report.version} of {plain(report.workflow)} → version {report.other}"
    yield f"{pen.good('✓')} {head}: it can go on" if report.is_possible else f"{pen.bad('✗')} {head}: it cannot go on"
    for problem in report.problems:
        yield f"{pen.bad('✗')} {plain(problem)}"
    for node in report.nodes:
        yield _node(node, pen)


def _node(node: NodeOutlook, pen: Pen) -> str:
    line = f"{_MARKS[node.verdict]} {plain(node.node_id)}: {_WORDS[node.verdict]}"
    line += f" because {plain(node.reason)}" if node.reason and node.verdict != "kept" else ""
    line += f"; {plain(node.reason)}" if node.reason and node.verdict == "kept" else ""
    match node.verdict:
        case "impossible":
            return pen.bad(line)
        case "again":
            return pen.warning(line)
        case _:
            return line


def _document(report: Compatibility) -> dict[str, Any]:
    return {
        "workflow": report.workflow,
        "version": report.version,
        "other": report.other,
        "problems": report.problems,
        "nodes": report.nodes,
    }
