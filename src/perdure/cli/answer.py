"""The command that answers what runs ask: `answer`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import click

from perdure.cli.exits import Exit
from perdure.cli.options import COMMAND_LINE, Place, WholeNumber, json_option, print_json, store_option
from perdure.cli.questions import as_typed, ask_here, prompt_of, read_answer, takes
from perdure.cli.stores import opened
from perdure.cli.terminal import Paper, paper
from perdure.cli.waits import example_answer, waiting_words
from perdure.cli.words import TIME_IS_OVER, cells, day_and_time, fitted, padded, plain, until
from perdure.clock import SystemClock
from perdure.engine.engine import Engine
from perdure.engine.inspect import find_run, living_engines, wait_report, whole_values
from perdure.errors import RunNotFound
from perdure.journal import events as e
from perdure.journal.states import TERMINAL, WaitKind, WaitStatus
from perdure.store.base import Store
from perdure.store.shapes import OpenWait

PAGE = 100
DEFAULT_LIMIT = 100
MOST_LISTED = 5
"""How many questions of one run are named when it has to be said which one is meant."""


@click.command("answer")
@click.argument("target", metavar="[RUN|QUESTION]", required=False)
@click.argument("value", metavar="[VALUE]", required=False)
@click.option("--limit", type=WholeNumber(min=1), default=DEFAULT_LIMIT, show_default=True,
              help="List at most so many, the oldest.")  # fmt: skip
@click.option("--by", default=COMMAND_LINE, metavar="NAME", help="Who answers, for the log.")
@store_option
@json_option
def answer_command(target: str | None, value: str | None, limit: int, by: str, store: Place, as_json: bool) -> int:
    """Answer what a run asks. Without arguments, list what all runs ask, with the ids of the questions.

    A RUN that asks one thing needs no more than its id, or as much of its beginning as no other run has. Without a VALUE, a
    terminal shows the question and asks for the answer. A VALUE is read as JSON where that is an answer, and is a text
    otherwise. The first answer counts. An answer that does not fit is refused, and the question stays open.

    This needs none of the run's code, and does not drive the run: `perdure resume` does, unless an engine is running.

    \b
      perdure answer
      perdure answer 0198f2 true
      perdure answer digest-1/approval/1 "not like this" --by ada
    """
    if target is None:
        return asyncio.run(_list(store, limit, as_json=as_json))
    found, show = asyncio.run(_find(target, store))
    if value is not None:
        answer = read_answer(value, found.wait)[0]
    elif as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(_what_to_say(found, store))
    else:
        answer = ask_here(found, show, paper())
    goes_on = asyncio.run(_answer(found, answer, by, store))
    if as_json:
        print_json(
            {"run_id": found.run_id, "interaction_id": found.wait.wait_id, "node_id": found.wait.node_id, "by": by}
            | {"answer": answer}
        )
    else:
        then = "" if goes_on else f" `{store.command('resume', found.run_id)}` goes on."
        click.echo(f"question {plain(found.wait.wait_id)} is answered: {fitted(as_typed(answer), 60)}.{then}")
    return Exit.DONE


async def _find(target: str, place: Place) -> tuple[OpenWait, e.Encoded | None]:
    """Return the question that is meant, with what there is to see in full. Raises click.UsageError if none is."""
    async with opened(place) as store:
        found = await store.load_wait(target) or await _only_one(target, store, place)
        if found.wait.kind is WaitKind.SUSPEND:
            resume = place.command("resume", found.run_id, "--node", found.wait.node_id, "--value", "JSON")
            raise click.UsageError(f"{target} is no question, but a node that waits to be told to go on: {resume}")
        question = found.wait.question
        shown = None if question is None else e.or_none(question.show)
        if shown is None or found.wait.status is not WaitStatus.OPEN:
            return found, None
        return found, (await whole_values(store, {"show": shown}))["show"]


async def _only_one(target: str, store: Store, place: Place) -> OpenWait:
    try:
        run_id = await find_run(store, target)
    except RunNotFound:
        raise click.UsageError(
            f"There is neither a question nor a run {target!r}. `{place.command('answer')}` lists what is asked."
        ) from None
    waits = await store.list_waits(run_id=run_id, limit=PAGE)
    unanswered = await store.list_waits(run_id=run_id, questions_only=True, limit=PAGE)
    # If there is an answer to all, whoever gives another is told so.
    asked = _questions(unanswered) or _questions(waits)
    if not asked:
        run = await store.load_state(run_id)
        is_over = run is not None and run.status in TERMINAL
        now = SystemClock().now_micros()
        others = [f"{plain(found.wait.node_id)} {waiting_words(found.wait, now=now)}" for found in waits[:MOST_LISTED]]
        why = (
            f": it is {run.status.value}" if run is not None and is_over else f". {'; '.join(others)}" if others else ""
        )
        raise click.UsageError(f"Run {plain(run_id)} asks nothing{why}.")
    if len(asked) > 1:
        listed = "".join(
            f"\n  {plain(found.wait.wait_id)}  {plain(prompt_of(found.wait))}" for found in asked[:MOST_LISTED]
        )
        more = f"\n  … and {len(asked) - MOST_LISTED} more" if len(asked) > MOST_LISTED else ""
        raise click.UsageError(f"Run {plain(run_id)} asks {len(asked)} things. Say which one is meant:{listed}{more}")
    return asked[0]


def _questions(waits: Sequence[OpenWait]) -> list[OpenWait]:
    return [found for found in waits if found.wait.kind is WaitKind.ASK]


def _what_to_say(found: OpenWait, place: Place) -> str:
    value, others = example_answer(found.wait)
    command = place.command("answer", found.wait.wait_id, value) + others
    return f"Say what the answer to {prompt_of(found.wait)!r} is, which takes {takes(found.wait)}: {command}"


async def _answer(found: OpenWait, answer: Any, by: str, place: Place) -> bool:
    """Answer, and return whether some engine is running that may go on with the run."""
    async with Engine(place.url, workflows=(), recover=False) as engine:  # without workflows it cannot drive the run
        await (await engine.get(found.run_id)).answer(found.wait.wait_id, answer, by=by)
        return bool(await living_engines(engine.store) - {engine.engine_id})


async def _list(place: Place, limit: int, *, as_json: bool) -> int:
    async with opened(place) as store:
        found = await _open_questions(store, limit + 1)
    if as_json:
        print_json([_document(question) for question in found[:limit]])
    elif not found:
        click.echo("Nothing is asked.")
    else:
        _print(found[:limit], paper(), more=len(found) > limit)
    return Exit.DONE


async def _open_questions(store: Store, limit: int) -> list[OpenWait]:
    """Return what is asked, oldest first, without what is answered and only waits for the run to be driven."""
    found: list[OpenWait] = []
    after: tuple[int, str] | None = None
    while len(found) < limit and (page := await store.list_waits(questions_only=True, after=after, limit=PAGE)):
        after = (page[-1].wait.opened_at, page[-1].wait.wait_id)
        found += page
    return found[:limit]


def _document(found: OpenWait) -> dict[str, Any]:
    report = wait_report(found.wait, is_answered=False)
    told = {
        field: getattr(report, field) for field in report.__struct_fields__ if field not in ("id", "signal", "answered")
    }
    return {"interaction_id": report.id, "run_id": found.run_id, "workflow": found.workflow} | told


def _print(found: Sequence[OpenWait], sheet: Paper, *, more: bool) -> None:
    now = SystemClock().now_micros()
    rows = [("QUESTION", "ASKED", "UNTIL", "")]
    for question in found:
        wait = question.wait
        limit = "" if wait.due is None else until(wait.due, now=now) if now < wait.due else TIME_IS_OVER
        asked = prompt_of(wait) if wait.kind is WaitKind.ASK else waiting_words(wait, now=now)
        rows.append((plain(wait.wait_id), day_and_time(wait.opened_at), limit, plain(asked)))
    widths = [max(cells(row[column]) for row in rows) for column in range(3)]
    for number, row in enumerate(rows):
        head = "  ".join(padded(text, width) for text, width in zip(row[:3], widths, strict=True))
        room = max(sheet.width - cells(head) - 2, 20)
        line = f"{head}  {fitted(row[3], room) if sheet.is_live else row[3]}".rstrip()
        click.echo(sheet.pen.faint(line) if not number else line)
    if more:
        click.echo(sheet.pen.faint(f"… and more: --limit {len(found) * 5}"))
