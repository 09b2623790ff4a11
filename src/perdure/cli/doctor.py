"""The command that finds damaged runs and repairs them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from perdure.cli.check import all_runs
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
from perdure.cli.marks import words_of
from perdure.cli.options import Place, imports_option, json_option, print_json, store_option, users_output
from perdure.cli.program import load_places, load_types_of
from perdure.cli.stores import opened, require
from perdure.cli.terminal import Pen, paper
from perdure.cli.words import counted, plain
from perdure.clock import SystemClock
from perdure.engine.engine import Engine
from perdure.engine.inspect import find_run, load_graph, load_run
from perdure.engine.owning.doctoring import Diagnosis, Examiner
from perdure.errors import ProgramError, RunDamaged, TypesMissing
from perdure.graph.declare import declared_types
from perdure.ids import RunId
from perdure.journal.ailments import CATALOGUE, Ailment
from perdure.journal.diagnose import Finding
from perdure.journal.states import TERMINAL

CODES = tuple(CATALOGUE)
ALL = "all"


@click.command("doctor")
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option("--fix", is_flag=True, help="Repair what can be repaired.")
@click.option("--explain", type=click.Choice([*CODES, ALL], case_sensitive=False), metavar="CODE",
              help="Say what a code means and what is done about it; `all` for the whole catalogue.")  # fmt: skip
@imports_option
@store_option
@json_option
def doctor_command(
    runs: Sequence[str], fix: bool, explain: str | None, imports: Sequence[str], store: Place, as_json: bool
) -> int:
    """Find runs whose rows do not agree with their logs: after a backup was restored or a row was edited, say.

    With --fix they go on on a branch that agrees with the log. Nothing is removed, no node that is recorded as done runs
    again, and nothing is driven here: `perdure resume`, or any engine, goes on with the run. Without a RUN, every run of the
    store is looked at. Exits with 1 if something is wrong, and still is.

    \b
      perdure doctor
      perdure doctor 0198f2 --fix
      perdure doctor --explain A1
    """
    if explain is not None:
        return _explain([CATALOGUE[code] for code in CODES if explain in (code, ALL)], as_json=as_json)
    require(store)
    with users_output(as_json=as_json):
        load_places(imports)
        examined, found, refused = asyncio.run(_repair(runs, store) if fix else _look(runs, store))
    if as_json:
        documents = [_document(diagnosis) for diagnosis in found]
        print_json({"runs": examined, "diagnoses": documents, "refused": refusal_documents(refused)})
    else:
        if examined or not refused:
            _print(found, store, paper().pen, examined=examined, is_asked=bool(runs), fix=fix)
        tell_refusals(refused)
    return Exit.FAILED if any(diagnosis.left for diagnosis in found) else exit_after_each(refused)


async def _look(runs: Sequence[str], place: Place) -> tuple[int, list[Diagnosis], Refusals]:
    async with opened(place) as store:
        examiner = Examiner(store, declared_types, SystemClock())
        if not runs:
            shown = counted_off(await all_runs(store), "Examining runs")
            every = [await examiner.examine(run_id) for run_id in shown]
            return len(every), [diagnosis for diagnosis in every if diagnosis.findings], {}
        chosen, unknown = await for_each(runs, lambda run: find_run(store, run))
        found, left = await for_each(list(chosen.values()), lambda run_id: examiner.examine(RunId(run_id)))
    refused = unknown | left
    raise_if_alone(runs, refused)
    return len(found), list(found.values()), refused


async def _repair(runs: Sequence[str], place: Place) -> tuple[int, list[Diagnosis], Refusals]:
    examined, found, refused = await _look(runs, place)
    damaged = [diagnosis.run_id for diagnosis in found if diagnosis.findings]
    await _load_code_of(damaged, place)
    healed: dict[RunId, Diagnosis] = {}
    if damaged:
        async with Engine(place.url, recover=False) as engine:
            for run_id in damaged:
                with suppress(RunDamaged):  # what is wrong with it is told as it was found
                    healed[run_id] = (await engine.doctor(run_id, fix=True))[0]
    return examined, [healed.get(diagnosis.run_id, diagnosis) for diagnosis in found], refused


async def _load_code_of(run_ids: Sequence[RunId], place: Place) -> None:
    """See to it that the node types are there of runs that are to be repaired, as far as they are found."""
    async with opened(place) as store:
        for run_id in run_ids:
            run = (await load_run(store, run_id)).run
            graph = await load_graph(store, run)
            if graph is not None:
                # Most can be repaired without, and the doctor says which cannot.
                with suppress(ProgramError, TypesMissing):
                    load_types_of(run, graph, ())


def _explain(ailments: Sequence[Ailment], *, as_json: bool) -> int:
    if as_json:
        print_json(ailments)
        return Exit.DONE
    pen = paper().pen
    for ailment in ailments:
        mark = pen.warning("issue") if ailment.is_issue else pen.good("no issue")
        click.echo(f"{pen.strong(ailment.code)} {ailment.title} ({mark})")
        click.echo(f"  {ailment.explanation}")
        click.echo(f"  {pen.faint(ailment.remedy)}")
    return Exit.DONE


def _document(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "run_id": diagnosis.run_id,
        "healthy": diagnosis.is_healthy,
        "findings": [_finding_document(found) for found in diagnosis.findings],
        "left": [_finding_document(found) for found in diagnosis.left],
        "notes": [_finding_document(found) for found in diagnosis.notes],
        "repair": diagnosis.repair,
    }


def _finding_document(found: Finding) -> dict[str, Any]:
    return {
        "code": found.code,
        "title": CATALOGUE[found.code].title,
        "node_id": found.node_id,
        "problem": found.problem,
        "explanation": found.explanation,
        "remedy": found.remedy,
        "left": found.left or None,
    }


def _print(found: Sequence[Diagnosis], place: Place, pen: Pen, *, examined: int, is_asked: bool, fix: bool) -> None:
    for diagnosis in found:
        _print_diagnosis(diagnosis, place, pen, fix=fix)
        for note in diagnosis.notes if is_asked else ():
            told = f"{note.code} {plain(note.problem)}: no issue. {note.explanation}"
            click.echo(f"  {pen.faint(told)}")
    left = sum(bool(diagnosis.left) for diagnosis in found)
    repaired = sum(diagnosis.repair is not None for diagnosis in found)
    mended = f", {repaired} repaired" if repaired else ""
    if left:
        click.echo(f"{left} of {counted(examined, 'run')} damaged{mended}.")
    else:
        click.echo(f"{pen.good('✓')} {counted(examined, 'run')} examined{mended}, nothing is wrong.")


def _print_diagnosis(diagnosis: Diagnosis, place: Place, pen: Pen, *, fix: bool) -> None:
    run_id = diagnosis.run_id
    if not diagnosis.findings:
        click.echo(f"{pen.good('✓')} {plain(run_id)}")
        return
    click.echo(f"{pen.good('✓') if diagnosis.is_healthy else pen.bad('✗')} {plain(run_id)}")
    for found in diagnosis.findings:
        click.echo(f"  {pen.warning(found.code)} {plain(found.problem)}")
        click.echo(f"     {pen.faint(plain(found.remedy))}")
        if found.left:
            click.echo(f"     It is left as it is: {plain(found.left)}.")
    repair = diagnosis.repair
    if repair is not None:
        click.echo(
            f"  repaired: it goes on on branch {repair.branch}, which keeps branch {repair.previous_branch} up to event "
            f"{repair.cut}; it is {words_of(repair.status)}"
        )
        if repair.status not in TERMINAL:
            click.echo(f"  {pen.faint(place.command('resume', run_id))}")
    elif not fix and not any(found.left for found in diagnosis.findings):
        click.echo(f"  {pen.faint(place.command('doctor', run_id, '--fix'))}")
