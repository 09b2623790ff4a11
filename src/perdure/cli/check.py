"""Commands that check: `validate` a workflow before it runs, `verify` runs that are stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from perdure.cli.each import (
    Refusals,
    counted_off,
    exit_after_each,
    for_each,
    raise_if_alone,
    refusal_documents,
    tell_refusals,
)
from perdure.cli.exits import Exit
from perdure.cli.options import Place, awaited, imports_option, json_option, print_json, store_option, users_output
from perdure.cli.program import Program, load_programs, require_valid
from perdure.cli.stores import archive_folder, holding, opened
from perdure.cli.terminal import Pen, paper
from perdure.cli.words import counted, plain
from perdure.engine.inspect import verify_run
from perdure.engine.keeping.archives import all_archived, verify_archived
from perdure.errors import GraphError, InvalidGraph, ProgramError, RunArchived, RunNotFound, UnreadableGraph
from perdure.graph.model import Graph
from perdure.ids import RunId
from perdure.journal.verify import Violation
from perdure.store.base import Store
from perdure.store.shapes import RunFilter

PAGE = 200
_BLOBS_ARE_THERE = "I29"


@click.command("validate")
@click.argument("target", metavar="FILE[:WORKFLOW]")
@imports_option
@json_option
def validate_command(target: str, imports: Sequence[str], as_json: bool) -> int:
    """Say everything that is wrong with a workflow, without running it.

    FILE is a Python file, or a graph in JSON or YAML. Without a name, every workflow in it is checked.

    \b
      perdure validate flow.py
      perdure validate graph.yaml --import nodes.py
    """
    try:
        with users_output(as_json=as_json):
            checked = [(program, _problem_of(program)) for program in load_programs(target, imports)]
    except ProgramError as error:
        if not as_json or not isinstance(error.__cause__, UnreadableGraph):
            raise
        print_json([_document(Path(target).stem, error.__cause__)])
        return Exit.WRONG_USE
    if as_json:
        print_json([_document(program.name, problem) for program, problem in checked])
    else:
        for program, problem in checked:
            _print_validation(program, problem, paper().pen)
    return Exit.WRONG_USE if any(problem is not None for _, problem in checked) else Exit.DONE


@click.command("verify")
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option("--archived", is_flag=True, help="Check all runs in the archive as well, where they are.")
@store_option
@json_option
@awaited
async def verify_command(runs: Sequence[str], archived: bool, store: Place, as_json: bool) -> int:
    """Prove that stored runs are whole: that their logs obey the law and add up to the tables, row for row.

    Without a RUN, every run of the database is checked, and with --archived every one in the archive. Exits with 1 if anything is
    wrong. No code of any node is run. Of runs that were started with --journal audit it is proved that their tables agree with
    each other, and that what their logs hold fits.

    \b
      perdure verify
      perdure verify 0198f2
      perdure verify --archived
    """
    if runs and archived:
        raise click.UsageError("--archived is for all runs. One that is named is found wherever it is.")
    violations: dict[RunId, list[Violation]] = {}
    audited: list[RunId] = []

    async def verify(source: Store, run_id: RunId) -> None:
        violations[run_id] = await verify_run(source, run_id)
        state = await source.load_state(run_id)
        if state is not None and state.audit is not None and run_id not in audited:
            audited.append(run_id)

    async def verify_one(text: str) -> None:
        async with holding(store, text) as (source, (run_id,)):
            await verify(source, run_id)

    _, refused = await for_each(runs, verify_one)
    raise_if_alone(runs, refused)
    if not runs:
        async with opened(store) as source:
            for run_id in counted_off(await all_runs(source), "Checking runs"):
                with suppress(RunArchived, RunNotFound):  # it has left meanwhile
                    await verify(source, run_id)
            if archived:
                violations |= await _verify_archived(source, archive_folder(store))
    if as_json:
        print_json(_verification_document(violations, audited, refused))
    else:
        if violations or not refused:
            _print_verification(violations, audited, paper().pen)
        tell_refusals(refused)
    return Exit.FAILED if any(violations.values()) else exit_after_each(refused)


async def _verify_archived(store: Store, folder: Path) -> dict[RunId, list[Violation]]:
    violations: dict[RunId, list[Violation]] = {}
    everything = [run async for run in all_archived(store)]
    for run in counted_off(everything, "Checking the archive"):
        found = await verify_archived(folder, run)
        if not found or await store.load_archive(run.run_id) == run:  # else somebody has brought it back meanwhile
            violations[run.run_id] = found
    return violations


def _problem_of(program: Program) -> GraphError | None:
    try:
        require_valid(program)
    except GraphError as error:
        return error
    return None


def _document(workflow: str, problem: GraphError | None) -> dict[str, Any]:
    faults: list[dict[str, Any]] = []
    if isinstance(problem, InvalidGraph):
        faults = [fault._asdict() for fault in problem.faults]
    elif problem is not None:
        told = problem.faults if isinstance(problem, UnreadableGraph) else [problem]
        faults = [{"node": None, "rule": problem.code, "message": str(fault), "remedy": ""} for fault in told]
    return {"workflow": workflow, "valid": problem is None, "faults": faults}


def _print_validation(program: Program, problem: GraphError | None, pen: Pen) -> None:
    if problem is None:
        graph = program if isinstance(program, Graph) else program.graph
        shape = f"{counted(len(graph.nodes), 'node')}, {counted(len(graph.edges), 'edge')}"
        click.echo(f"{pen.good('✓')} {plain(graph.name)} {pen.faint(shape)}")
        return
    if not isinstance(problem, InvalidGraph):
        click.echo(f"{pen.bad('✗')} {plain(program.name)}: {problem}")
        return
    click.echo(f"{pen.bad('✗')} {plain(program.name)}: {counted(len(problem.faults), 'fault')}")
    for fault in problem.faults:
        click.echo(f"- {pen.warning(f'[{fault.rule}]')} {plain(fault.message)} {pen.faint(plain(fault.remedy))}")


async def all_runs(store: Store) -> list[RunId]:
    """Return the ids of every run in the store, newest first."""
    found: list[RunId] = []
    before: tuple[int, str] | None = None
    while page := await store.list_runs(RunFilter(), before=before, limit=PAGE):
        found += [run.run_id for run in page]
        before = (page[-1].created_at, page[-1].run_id)
    return found


def _verification_document(
    violations: dict[RunId, list[Violation]], audited: Sequence[RunId], refused: Refusals
) -> dict[str, Any]:
    return {
        "runs": len(violations),
        "audited": audited,
        "violations": [
            {"run_id": run_id, "invariant": violation.invariant, "problem": violation.problem}
            for run_id, found in violations.items()
            for violation in found
        ],
        "refused": refusal_documents(refused),
    }


def _remedies(violations: Iterable[Sequence[Violation]]) -> str:
    invariants = {violation.invariant for found in violations for violation in found}
    remedies = ["`perdure doctor RUN` says whether it can be mended."] if invariants - {_BLOBS_ARE_THERE} else []
    remedies += ["Blobs can only come back from a backup."] if _BLOBS_ARE_THERE in invariants else []
    return " ".join(remedies)


def _print_verification(violations: dict[RunId, list[Violation]], audited: Sequence[RunId], pen: Pen) -> None:
    for run_id, found in violations.items():
        if found:
            click.echo(f"{pen.bad('✗')} {plain(run_id)}")
        for violation in found:
            click.echo(f"  {pen.warning(violation.invariant)} {plain(violation.problem)}")
    broken = sum(bool(found) for found in violations.values())
    if broken:
        click.echo(f"{broken} of {counted(len(violations), 'run')} broken. {_remedies(violations.values())}")
    else:
        click.echo(f"{pen.good('✓')} {counted(len(violations), 'run')} checked, all invariants hold.")
    if audited:
        told = f"{counted(len(audited), 'run')} with journal=audit: the log is best effort, and was checked for what it holds."
        click.echo(pen.faint(told))
