"""The views of triggers, past the store: what people see of what feeds runs from outside, in both databases."""

from __future__ import annotations

import json

from perdure import Engine, collect, inbox, node, workflow
from perdure.ids import NodeId
from perdure.journal import events as e
from perdure.store.base import Store
from tests.store.builders import Draft, encoded, settle, started
from tests.store.test_waiting_tables import select

TRIGGERS = """
    SELECT run_id, branch_id, node_id, type, config, cursor, inputs, registered_at
      FROM triggers WHERE project_id = 'default' ORDER BY run_id, node_id
    """
INPUTS = """
    SELECT run_id, branch_id, node_id, input_id, position, seq, cursor, received_at
      FROM trigger_inputs WHERE project_id = 'default' ORDER BY run_id, node_id, seq
    """
STEP = NodeId("step0")
CONFIG = {"cron": "30 2 * * *", "tags": ["ü", {"deep": None}]}


def registered(run_id: str, config: dict[str, object]) -> Draft:
    event = e.TriggerRegistered(node_id=STEP, trigger_type="perdure.schedule", config=config)
    return started(run_id).add(event)


def came(draft: Draft, input_id: str, cursor: object = None) -> Draft:
    draft.add(e.TriggerInputReceived(node_id=STEP, input_id=input_id))
    return draft if cursor is None else draft.add(e.TriggerCursorAdvanced(node_id=STEP, cursor=encoded(cursor)))


async def times_of(store: Store, draft: Draft, kind: type[e.Event]) -> list[tuple[int, int]]:
    dump = await store.dump_run(draft.run_id)
    assert dump is not None
    return [(entry.seq, entry.at) for entry in dump.events if isinstance(entry.event, kind)]


async def test_each_trigger_and_each_input_has_a_row(store: Store, url: str) -> None:
    fed = came(came(came(registered("fed", CONFIG), "a", {"at": 1}), "b"), 'c"', "last")
    quiet = registered("quiet", {})
    plain = started("plain")
    await settle(store, [draft.transition() for draft in (fed, quiet, plain)])

    triggers = await select(url, TRIGGERS)
    inputs = await select(url, INPUTS)

    ((_, begun),) = await times_of(store, fed, e.TriggerRegistered)
    assert [row[:4] for row in triggers] == [
        ("fed", 1, "step0", "perdure.schedule"),
        ("quiet", 1, "step0", "perdure.schedule"),
    ]
    assert [json.loads(str(row[4])) for row in triggers] == [CONFIG, {}]
    assert [row[5:7] for row in triggers] == [('"last"', 3), (None, 0)]
    assert triggers[0][7] == begun
    places = await times_of(store, fed, e.TriggerInputReceived)
    assert inputs == [
        ("fed", 1, "step0", input_id, position, seq, cursor, at)
        for position, (input_id, cursor, (seq, at)) in enumerate(
            zip(("a", "b", 'c"'), ('{"at":1}', None, '"last"'), places, strict=True)
        )
    ]


async def test_a_trigger_that_begins_again_counts_from_there(store: Store, url: str) -> None:
    draft = came(came(registered("again", {"old": 1}), "a", 1), "b", 2)
    draft.add(e.TriggerRegistered(node_id=STEP, trigger_type="perdure.folder", config={"new": 2}))
    await settle(store, [came(draft, "a").transition()])

    assert [row[3:7] for row in await select(url, TRIGGERS)] == [("perdure.folder", '{"new":2}', None, 1)]
    assert [row[3:5] for row in await select(url, INPUTS)] == [("a", 0), ("b", 1), ("a", 0)]


async def test_no_input_spoils_the_views(store: Store, url: str) -> None:
    spoilt = came(came(registered("spoilt", {"\x00": "nul \x00"}), "\x00", "\x00"), "well", "well")
    await settle(store, [spoilt.transition()])

    assert [(row[2], row[6]) for row in await select(url, TRIGGERS)] == [("step0", 2)]
    assert [(row[3], row[4], row[6]) for row in await select(url, INPUTS)][1] == ("well", 1, '"well"')


@node
async def viewed(item: int) -> int:
    return item


@workflow
def viewed_numbers() -> list[int]:
    return collect(viewed.map(inbox.named("numbers")(int)))


async def test_the_views_tell_what_has_come_for_a_run(url: str) -> None:
    async with Engine(url) as engine:
        run = await engine.start(viewed_numbers, run_id="r")
        for number in (7, 8, 8, 9):
            await run.deliver("numbers", number, id=f"number {number}", cursor=number)
        await run.stop()
        await run.result()

    ((_, _, node_id, kind, config, cursor, inputs, _),) = await select(url, TRIGGERS)
    assert (node_id, kind, cursor, inputs) == ("numbers", "perdure.inbox", '"9"', 3)
    assert json.loads(str(config)) == {"schema": {"type": "integer"}, "order": "number"}
    assert [(row[3], row[4], row[6]) for row in await select(url, INPUTS)] == [
        ("number 7", 0, '"7"'),
        ("number 8", 1, '"8"'),
        ("number 9", 2, '"9"'),
    ]
