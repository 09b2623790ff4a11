"""The tables of what waits, past the store: which indexes answer what is asked all the time, and what people see in the views."""

from __future__ import annotations

import re
from typing import Any

import apsw
import asyncpg
import pytest
from msgspec.structs import replace

from perdure.journal import events as e
from perdure.journal.states import Question, WaitKind
from perdure.store.base import Store
from perdure.store.opening import open_store
from perdure.store.queries import load_queries
from perdure.store.transitions import Committed
from tests.store.builders import begin, encoded, save_workflow, started
from tests.store.test_conformance_waits import NOW, answered, put, question, sleep

SQLITE = load_queries("perdure.store.sqlite")
POSTGRES = load_queries("perdure.store.postgres")

VALUES = {"text": "'default'", "bigint": "1", "boolean": "true", "text[]": "'{}'"}


async def filled(url: str, rows: int) -> None:
    """Leave behind runs that wait."""
    store = await open_store(url)
    await save_workflow(store)
    for number in range(rows):
        draft = started().add(e.RunSuspended(wake_at=NOW))
        transition = draft.transition(waits=[question(f"q{number}"), sleep(f"s{number}")])
        resting = replace(transition, run=replace(transition.run, wake_at=NOW))
        assert list(await store.commit([resting])) == [Committed()]
    await store.close()


# Plans


def _lookups_in_sqlite(url: str, name: str) -> list[str]:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    try:
        statement = SQLITE[name]
        count = len(set(re.findall(r"\?\d+", statement))) or statement.count("?")
        steps = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", (None,) * count)]
    finally:
        connection.close()
    assert not [step for step in steps if step.startswith("SCAN run_")], steps
    return [re.sub(r"^SEARCH \w+ USING (COVERING )?INDEX ", "", step) for step in steps if " INDEX " in step]


WOKEN = [
    "run_commands_untaken (project_id=?)",
    "run_commands_untaken (project_id=? AND run_id>?)",
    "sqlite_autoindex_run_state_1 (project_id=? AND run_id=?)",
    "run_commands_urgent (project_id=? AND run_id=?)",
    "run_commands_untaken (project_id=? AND run_id=?)",
    "run_state_sleeping (project_id=? AND wake_at<?)",
    "run_state_sleeping (project_id=? AND wake_at>?)",
]
RUN = "sqlite_autoindex_run_state_1 (project_id=? AND run_id=?)"
ANSWER = "sqlite_autoindex_run_commands_1 (project_id=? AND run_id=? AND command_id=?)"


async def test_sqlite_reads_only_what_it_is_asked_for(sqlite_url: str) -> None:
    await filled(sqlite_url, 3)
    expected = {
        "find_woken": WOKEN,
        "list_open_waits": ["run_waits_open (project_id=? AND (opened_at,wait_id)>(?,?))", RUN],
        "list_open_questions": ["run_waits_asked (project_id=? AND (opened_at,wait_id)>(?,?))", ANSWER, RUN],
        "list_run_waits": [RUN, "sqlite_autoindex_run_waits_1 (project_id=? AND run_id=? AND branch_id=?)", ANSWER],
        "load_wait": ["run_waits_by_id (project_id=? AND wait_id=?)", RUN],
        "load_waits": ["sqlite_autoindex_run_waits_1 (project_id=? AND run_id=?)"],
        "load_signals": ["sqlite_autoindex_run_signals_1 (project_id=? AND run_id=?)"],
    }

    found = {name: _lookups_in_sqlite(sqlite_url, name) for name in expected}

    assert found == expected
    assert "run_state_moving (project_id=?)" in _lookups_in_sqlite(sqlite_url, "find_claimable")


OF_RUN = r"run_state_pkey on run_state.*\n.*project_id = .*run_id = "
OF_ANSWER = r"run_commands_pkey on run_commands.*\n.*project_id = .*run_id = .*command_id = "
IN_POSTGRES = {
    "find_woken": [
        r"Only Scan using run_commands_untaken .*\n\s+Index Cond: \(project_id = [^)]*\)$",
        r"Only Scan using run_commands_untaken .*\n.*project_id = .*run_id > ",
        OF_RUN,
        r"Scan using run_commands_urgent .*\n.*project_id = .*run_id = ",
        r"Only Scan using run_commands_untaken .*\n.*project_id = .*run_id = ",
        r"Only Scan using run_state_sleeping .*\n.*project_id = .*wake_at <= ",
        r"Only Scan using run_state_sleeping .*\n.*project_id = .*wake_at > ",
    ],
    "list_open_waits": [r"run_waits_open .*\n.*project_id = .*ROW\(opened_at, wait_id\) > ", OF_RUN],
    "list_open_questions": [r"run_waits_asked .*\n.*project_id = .*ROW\(opened_at, wait_id\) > ", OF_RUN, OF_ANSWER],
    "list_run_waits": [OF_RUN, r"run_waits_pkey .*\n.*project_id = .*run_id = .*branch_id = ", OF_ANSWER],
    "load_wait": [r"run_waits_by_id .*\n.*project_id = .*wait_id = ", OF_RUN],
}


@pytest.mark.parametrize("rows", [0, 1, 40])
@pytest.mark.parametrize("is_analysed", [False, True])
@pytest.mark.new_database
async def test_postgres_reads_only_what_it_is_asked_for(postgres_url: str, rows: int, is_analysed: bool) -> None:
    await filled(postgres_url, rows)
    raw: Any = await asyncpg.connect(postgres_url)
    if is_analysed and rows:
        await raw.execute("VACUUM ANALYZE")
    await raw.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")

    for mode in ("force_generic_plan", "force_custom_plan"):
        await raw.execute(f"SET plan_cache_mode = {mode}")
        for name, lookups in IN_POSTGRES.items():
            plan = await _plan(raw, POSTGRES[name])
            for lookup in lookups:
                assert re.search(lookup, plan, re.MULTILINE), (lookup, plan)
            assert len(re.findall(r"Scan using|Seq Scan|Bitmap", plan)) == len(lookups), plan
            assert "Sort" not in plan or name == "list_run_waits", plan
        plan = await _plan(raw, POSTGRES["find_claimable"])
        for lookup in (r"run_state_moving on run_state", *IN_POSTGRES["find_woken"][:4]):
            assert re.search(lookup, plan, re.MULTILINE), (lookup, plan)
        assert "Seq Scan" not in plan
    await raw.close()


async def _plan(raw: Any, statement: str) -> str:
    await raw.execute(f"PREPARE asked AS {statement}")
    types = await raw.fetchval("SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'asked'")
    found = await raw.fetch(f"EXPLAIN EXECUTE asked ({', '.join(VALUES[kind] for kind in types)})")
    await raw.execute("DEALLOCATE asked")
    return "\n".join(row[0] for row in found)


# Views

INTERACTIONS = """
    SELECT interaction_id, run_id, branch_id, node_id, kind, prompt, schema, status, answer, responded_by, created_at, due,
           responded_at
      FROM interactions WHERE project_id = 'default' ORDER BY interaction_id
    """
TIMERS = """
    SELECT timer_id, run_id, branch_id, node_id, kind, due, status
      FROM timers WHERE project_id = 'default' ORDER BY timer_id
    """


async def select(url: str, statement: str) -> list[tuple[object, ...]]:
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        try:
            return [tuple(row) for row in connection.execute(statement)]
        finally:
            connection.close()
    raw: Any = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await raw.fetch(statement)]
    finally:
        await raw.close()


@pytest.fixture
def store(unverified_store: Store) -> Store:
    """A store whose runs are not verified in the end: their waits are put there by hand."""
    return unverified_store


async def test_questions_and_timers_are_shown_in_views(store: Store, url: str) -> None:
    draft = await begin(store, "r")
    asked = replace(question("asked", opened_at=3), due=4, question=Question(prompt="Why?", schema={"type": "string"}))
    suspended = replace(answered(question("stopped", opened_at=5), [1]), kind=WaitKind.SUSPEND)
    waiting = replace(sleep("waiting"), kind=WaitKind.SIGNAL, signal="paid", due=6)
    await put(store, draft, asked, suspended, sleep("sleeping"), waiting, replace(waiting, wait_id="x", due=None))

    assert await select(url, INTERACTIONS) == [
        ("asked", "r", 1, "step0", "ask", "Why?", '{"type":"string"}', "open", None, "", 3, 4, None),
        ("stopped", "r", 1, "step0", "suspend", "Ship it?", "{}", "settled", "[1]", "ann", 5, None, NOW),
    ]
    assert await select(url, TIMERS) == [
        ("asked", "r", 1, "step0", "ask", 4, "open"),
        ("sleeping", "r", 1, "step0", "sleep", NOW, "open"),
        ("waiting", "r", 1, "step0", "signal", 6, "open"),
    ]


async def test_no_question_spoils_the_view(store: Store, url: str) -> None:
    draft = await begin(store, "r")
    spoilt = Question(prompt="nul \x00", schema={"\x00": "\\u0000"}, show=encoded("\x00"))
    await put(store, draft, replace(question("spoilt"), question=spoilt), question("well"))

    assert [row[0] for row in await select(url, INTERACTIONS)] == ["spoilt", "well"]
