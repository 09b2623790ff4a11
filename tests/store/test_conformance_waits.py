"""What every store promises of waits and signals: with their transition or not at all, each branch by itself, lists in pages.

What is written here is any row that a store may be given, whether or not the events beside it add up to it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from perdure.ids import ROOT_BRANCH, BranchId, CommandId, Epoch, NodeId, RunId, Seq
from perdure.journal import events as e
from perdure.journal.states import Question, RunStatus, SignalState, WaitKind, WaitState, WaitStatus
from perdure.store.base import Store
from perdure.store.shapes import Command, OpenWait
from perdure.store.transitions import Committed, LeaseLost, Rejected, Transition
from tests.store.builders import WORKFLOW, Draft, begin, commit, encoded, loaded, save_workflow, started
from tests.store.conftest import OpenStore
from tests.store.contents import contents_of

SECOND_BRANCH = BranchId(2)
NO_TEXT = "half \ud800 pair"
NOW = 1_800_000_000_000_000
QUESTION = Question(prompt="Ship it?")


@pytest.fixture
def store(unverified_store: Store) -> Store:
    """A store whose runs are not verified in the end: their waits are put there by hand."""
    return unverified_store


async def put(store: Store, draft: Draft, *waits: WaitState) -> None:
    draft.begin_node(f"beside {draft.base_seq}")
    assert await commit(store, draft.transition(waits=waits)) == [Committed()]


def question(wait_id: str, *, branch_id: BranchId = ROOT_BRANCH, opened_at: int = 1, seq: int = 7) -> WaitState:
    return WaitState(
        wait_id=wait_id,
        node_id=NodeId("step0"),
        branch_id=branch_id,
        kind=WaitKind.ASK,
        name="Ship it?",
        question=QUESTION,
        opened_at=opened_at,
        last_seq=Seq(seq),
    )


def sleep(wait_id: str, *, opened_at: int = 1, seq: int = 7) -> WaitState:
    return replace(
        question(wait_id, opened_at=opened_at, seq=seq), kind=WaitKind.SLEEP, name="sleep", question=None, due=NOW
    )


def answered(wait: WaitState, answer: object = "yes", *, seq: int = 9) -> WaitState:
    return replace(wait, status=WaitStatus.SETTLED, result=encoded(answer), by="ann", settled_at=NOW, last_seq=Seq(seq))


def signal(signal_id: str, *, seq: int = 7) -> SignalState:
    return SignalState(signal_id=signal_id, name="paid", value=encoded({"euro": 3}), received_at=NOW, seq=Seq(seq))


def as_it_is(transition: Transition) -> Transition:
    return transition


def as_a_step(transition: Transition) -> Transition:
    """As an engine says it of nearly every transition, which a store may write in a faster way."""
    return replace(transition, only_steps=True)


both_ways = pytest.mark.parametrize("offered", [as_it_is, as_a_step])
Offered = Callable[[Transition], Transition]


# Writing

RUNNING = RunStatus.RUNNING
OF_ALL_KINDS = (
    replace(
        question("asked", seq=8),
        name='["ask","Ship it?"]',
        occurrence=3,
        question=Question(
            prompt="Ship it?",
            schema={"type": "object", "properties": {"why": {"type": "string"}}},
            choices=(encoded("yes"), encoded(None), encoded({"no": [1]})),
            show=encoded({"total": 3.5}),
            default=encoded("no"),
        ),
        due=NOW,
        opened_at=17,
    ),
    replace(question("nulls", seq=9), question=Question(prompt="", show=encoded(None), default=encoded(None))),
    replace(answered(question("answered")), by="bö"),
    replace(answered(question("with null"), None), last_seq=Seq(10)),
    replace(answered(question("too late")), result=None, by="", last_seq=Seq(11)),
    replace(question("stopped", seq=12), kind=WaitKind.SUSPEND, node_id=NodeId("step1")),
    replace(sleep("slept", seq=13), status=WaitStatus.WITHDRAWN, settled_at=18),
    replace(
        sleep("signalled", seq=14),
        kind=WaitKind.SIGNAL,
        signal="paid",
        signal_id="s1",
        status=WaitStatus.SETTLED,
        settled_at=19,
    ),
    replace(sleep("signal", seq=15), kind=WaitKind.SIGNAL, signal="paid", due=None),
)


@both_ways
@pytest.mark.parametrize("company", [0, 3])
async def test_waits_and_signals_are_read_back_as_they_were_written(
    store: Store, offered: Offered, company: int
) -> None:
    draft, *others = [await begin(store) for _ in range(1 + company)]
    signals = (signal("s2"), replace(signal("s1", seq=8), name="", value=encoded(None), received_at=0))
    written = offered(draft.begin_node("step1").transition(waits=OF_ALL_KINDS, signals=signals))

    outcomes = await commit(store, written, *[other.next_node(0).transition() for other in others])

    assert outcomes == [Committed()] * (1 + company)
    stored = await loaded(store, draft)
    assert sorted(stored.waits, key=by_place) == sorted(OF_ALL_KINDS, key=by_place)
    assert [wait.last_seq for wait in stored.waits] == sorted(wait.last_seq for wait in OF_ALL_KINDS)
    assert stored.signals == signals
    dump = await store.dump_run(draft.run_id)
    assert dump is not None
    assert dump.all_waits == dump.stored.waits == stored.waits
    assert dump.stored.signals == signals
    assert tuple(await store.load_events(draft.run_id, after=written.base_seq, limit=9)) == written.events
    for wait in OF_ALL_KINDS:
        assert await store.load_wait(wait.wait_id) == OpenWait(
            run_id=draft.run_id, workflow=WORKFLOW, run_status=RUNNING, wait=wait
        )
    for other in others:
        assert ((await loaded(store, other)).waits, (await loaded(store, other)).signals) == ((), ())


def by_place(wait: WaitState) -> tuple[int, str]:
    return wait.branch_id, wait.wait_id


async def test_a_run_may_begin_with_waits_and_signals(store: Store) -> None:
    draft = started()

    assert await commit(store, draft.transition(waits=[question("q")], signals=[signal("s")])) == [Committed()]

    stored = await loaded(store, draft)
    assert (stored.waits, stored.signals) == ((question("q"),), (signal("s"),))


async def test_a_run_without_waits_has_none(store: Store) -> None:
    stored = await loaded(store, await begin(store))

    assert (stored.waits, stored.signals, stored.run.wake_at) == ((), (), None)


@both_ways
async def test_a_wait_that_is_written_again_is_changed(store: Store, offered: Offered) -> None:
    draft = await begin(store)
    await put(store, draft, question("q"), question("other"))
    draft.begin_node("step1")
    changed = WaitState(
        wait_id="q",
        node_id=NodeId("step1"),
        branch_id=ROOT_BRANCH,
        kind=WaitKind.SIGNAL,
        name="changed",
        occurrence=1,
        status=WaitStatus.SETTLED,
        question=None,
        signal="paid",
        signal_id="s",
        due=3,
        result=encoded([1]),
        by="bob",
        opened_at=4,
        settled_at=5,
        last_seq=Seq(20),
    )

    assert await commit(store, offered(draft.transition(waits=[changed]))) == [Committed()]

    assert (await loaded(store, draft)).waits == (question("other"), changed)


async def test_a_group_of_many_writes_the_waits_of_each(store: Store) -> None:
    drafts = [started() for _ in range(50)]
    waits = {
        draft.run_id: [question(f"{draft.run_id}/{number}", seq=number + 1) for number in range(number_of)]
        for number_of, draft in enumerate(drafts)
    }

    outcomes = await commit(
        store,
        *[draft.transition(waits=waits[draft.run_id], signals=[signal("s")]) for draft in drafts],
    )

    assert outcomes == [Committed()] * len(drafts)
    for draft in drafts:
        stored = await loaded(store, draft)
        assert (stored.waits, stored.signals) == (tuple(waits[draft.run_id]), (signal("s"),))


async def test_waits_of_several_branches_do_not_mix(store: Store) -> None:
    draft = await begin(store)
    waits = [
        replace(answered(question("q")), last_seq=Seq(12)),
        question("q", branch_id=SECOND_BRANCH, seq=11),
        question("second", branch_id=SECOND_BRANCH, seq=10),
    ]
    await put(store, draft, *waits)

    assert (await loaded(store, draft)).waits == (waits[0],)
    dump = await store.dump_run(draft.run_id)
    assert dump is not None
    assert dump.all_waits == tuple(reversed(waits))
    assert dump.stored.waits == (waits[0],)

    draft.add(e.BranchActivated(branch_id=SECOND_BRANCH))
    assert await commit(store, draft.transition()) == [Committed()]
    assert (await loaded(store, draft)).waits == (waits[2], waits[1])


@pytest.mark.parametrize(
    "text", ["äöü ß 漢字 🙂 \U0010ffff", "nul \x00 here", "\ufdd0 mark \ufdd00", 'quote " and \\u0000', "\x7f\x1f\n"]
)
async def test_texts_of_all_kinds_come_back_as_they_were(store: Store, text: str) -> None:
    draft = Draft.create(text + " run").start().begin_node(text)
    wait = replace(
        question(text),
        node_id=NodeId(text),
        name=text,
        question=Question(prompt=text, schema={text: text}, choices=(encoded(text),), show=encoded({text: text})),
        signal=text,
        signal_id=text,
        result=encoded([text]),
        by=text,
    )
    came = replace(signal(text), name=text, value=encoded(text))

    assert await commit(store, draft.transition(waits=[wait], signals=[came])) == [Committed()]

    stored = await loaded(store, draft)
    assert (stored.waits, stored.signals) == ((wait,), (came,))
    found = OpenWait(run_id=draft.run_id, workflow=WORKFLOW, run_status=RUNNING, wait=wait)
    assert await store.load_wait(text) == found
    assert list(await store.list_waits(limit=9)) == [found]
    assert list(await store.list_waits(run_id=draft.run_id, limit=9)) == [found]


# Whole or not at all


@both_ways
@pytest.mark.parametrize("company", [0, 1])
async def test_what_is_refused_writes_no_waits(store: Store, url: str, offered: Offered, company: int) -> None:
    draft = await begin(store)
    others = [await begin(store) for _ in range(company)]
    await put(store, draft, question("q"))
    before = await contents_of(url)
    draft.begin_node("step1")
    transition = offered(draft.transition(waits=[answered(question("q")), question("more")], signals=[signal("s")]))

    for stale in (
        replace(transition, epoch=Epoch(0)),
        replace(transition, base_seq=Seq(1)),
        replace(transition, run_id=RunId("nobody")),
    ):
        outcomes = await commit(store, stale, *[other.transition() for other in others])
        assert outcomes == [LeaseLost()] + [Committed()] * company

    after = await contents_of(url)
    for table in ("run_waits", "run_signals", "run_events"):
        assert after[table] == before[table]


def _a_signal_that_came_before(draft: Draft) -> Transition:
    return draft.transition(waits=[question("q")], signals=[signal("new"), signal("came", seq=9)])


def _a_signal_twice(draft: Draft) -> Transition:
    return draft.transition(signals=[signal("new"), signal("new", seq=9)])


def _a_question_without_words(draft: Draft) -> Transition:
    return draft.transition(waits=[question("q"), replace(question("empty"), question=None)])


def _a_sleep_without_end(draft: Draft) -> Transition:
    return draft.transition(waits=[replace(sleep("forever"), due=None)])


def _a_signal_without_name(draft: Draft) -> Transition:
    return draft.transition(waits=[replace(sleep("any"), kind=WaitKind.SIGNAL)])


def _settled_at_no_time(draft: Draft) -> Transition:
    return draft.transition(waits=[replace(answered(question("q")), settled_at=None)])


def _an_answer_that_is_no_text(draft: Draft) -> Transition:
    return draft.transition(waits=[replace(answered(question("q")), result=msgspec.Raw(b'"\xff"'))])


def _an_id_that_is_no_text(draft: Draft) -> Transition:
    return draft.transition(waits=[question(NO_TEXT)])


@pytest.mark.parametrize(
    "spoil",
    [
        _a_signal_that_came_before,
        _a_signal_twice,
        _a_question_without_words,
        _a_sleep_without_end,
        _a_signal_without_name,
        _settled_at_no_time,
        _an_answer_that_is_no_text,
        _an_id_that_is_no_text,
    ],
)
@pytest.mark.parametrize("company", [0, 3])
async def test_what_the_database_refuses_harms_only_its_own_transition(
    store: Store, spoil: Callable[[Draft], Transition], company: int
) -> None:
    bad = await begin(store)
    assert await commit(store, bad.begin_node("step1").transition(signals=[signal("came")])) == [Committed()]
    before = await store.dump_run(bad.run_id)
    others = [await begin(store) for _ in range(company)]
    group = [other.begin_node("step1").transition(waits=[question("fine")]) for other in others]

    refused, *outcomes = await commit(store, spoil(bad.begin_node("step2")), *group)

    assert isinstance(refused, Rejected)
    assert outcomes == [Committed()] * company
    assert await store.dump_run(bad.run_id) == before
    assert [(await loaded(store, other)).waits for other in others] == [(question("fine"),)] * company


async def test_the_same_signal_may_come_to_many_runs(store: Store, open_another: OpenStore) -> None:
    elsewhere = await open_another(project_id="elsewhere")
    await save_workflow(elsewhere)
    drafts = [await begin(store, "a"), await begin(store, "b")]
    for draft in drafts:
        assert await commit(store, draft.begin_node("x").transition(signals=[signal("s")])) == [Committed()]

    assert await commit(elsewhere, started("a").transition(signals=[signal("s")])) == [Committed()]

    assert [(await loaded(store, draft)).signals for draft in drafts] == [(signal("s"),)] * 2


async def test_signals_are_read_in_the_order_in_which_they_came(store: Store) -> None:
    draft = await begin(store)
    came = [replace(signal(name, seq=seq), received_at=100 - seq) for seq, name in enumerate("hbxa", start=7)]
    for one in (came[0], came[1], came[2], came[3]):
        assert await commit(store, draft.begin_node(one.signal_id).transition(signals=[one])) == [Committed()]

    assert (await loaded(store, draft)).signals == tuple(came)


async def test_a_command_is_taken_back_if_its_run_had_ended(store: Store) -> None:
    draft = await begin(store)
    told = Command(command_id=CommandId("signal/s"), run_id=draft.run_id, kind="signal")
    assert await store.add_command(told)

    assert not await store.withdraw_command(draft.run_id, told.command_id), "it moves"
    draft.complete_node("step0").end()
    assert await commit(store, draft.transition()) == [Committed()]
    assert not await store.withdraw_command(RunId("another"), told.command_id)
    assert not await store.withdraw_command(draft.run_id, CommandId("signal/other"))
    assert await store.withdraw_command(draft.run_id, told.command_id)

    assert not await store.withdraw_command(draft.run_id, told.command_id)
    assert await store.load_command(draft.run_id, told.command_id) is None
    assert (await loaded(store, draft)).commands == ()


@pytest.mark.parametrize("kind", ["retry", "jump", "restore"])
async def test_a_command_stays_if_its_run_is_to_go_on(store: Store, kind: str) -> None:
    draft = await begin(store)
    draft.complete_node("step0").end()
    assert await commit(store, draft.transition()) == [Committed()]
    told = Command(command_id=CommandId("signal/s"), run_id=draft.run_id, kind="signal")
    assert await store.add_command(told)
    assert await store.add_command(Command(command_id=CommandId("again"), run_id=draft.run_id, kind=kind))

    assert not await store.withdraw_command(draft.run_id, told.command_id)

    assert await store.load_command(draft.run_id, told.command_id) is not None


async def test_a_command_stays_that_was_taken_up(store: Store) -> None:
    draft = await begin(store)
    told = Command(command_id=CommandId("signal/s"), run_id=draft.run_id, kind="signal")
    assert await store.add_command(told)
    ended = draft.complete_node("step0").end().transition(commands=[told.command_id])
    assert await commit(store, ended) == [Committed()]

    assert not await store.withdraw_command(draft.run_id, told.command_id)

    assert await store.load_command(draft.run_id, told.command_id) is not None


@both_ways
async def test_what_is_offered_again_was_written_once(store: Store, url: str, offered: Offered) -> None:
    draft = await begin(store)
    transition = offered(draft.begin_node("step1").transition(waits=[question("q")], signals=[signal("s")]))

    assert await commit(store, transition) == [Committed()]
    before = await contents_of(url)
    assert await commit(store, transition) == [Committed()]
    assert await contents_of(url) == before


# Lists


async def pages(
    store: Store,
    *,
    run_id: RunId | None = None,
    status: WaitStatus | None = WaitStatus.OPEN,
    questions_only: bool = False,
    page: int = 2,
) -> list[str]:
    """The ids of a list, page by page."""
    found: list[str] = []
    after = None
    while waits := await store.list_waits(
        run_id=run_id, status=status, questions_only=questions_only, after=after, limit=page
    ):
        assert len(waits) <= page
        found += [one.wait.wait_id for one in waits]
        after = (waits[-1].wait.opened_at, waits[-1].wait.wait_id)
    return found


@pytest.mark.parametrize("page", [1, 2, 3, 100])
async def test_open_waits_of_all_runs_are_listed_oldest_first_in_pages(store: Store, page: int) -> None:
    first, second = await begin(store, "first"), await begin(store, "second")
    await put(store, first, question("a", opened_at=30), question("f", opened_at=10), sleep("b", opened_at=20))
    await put(store, second, question("e", opened_at=20), sleep("c", opened_at=0), sleep("d", opened_at=20))
    await put(store, second, answered(question("gone", opened_at=15)))

    assert await pages(store, page=page) == ["c", "f", "b", "d", "e", "a"]
    assert await pages(store, questions_only=True, page=page) == ["f", "e", "a"]
    assert await pages(store, run_id=first.run_id, page=page) == ["f", "b", "a"]
    assert await pages(store, run_id=second.run_id, questions_only=True, page=page) == ["e"]


async def test_a_list_says_whose_wait_it_is(store: Store) -> None:
    await save_workflow(store, "parcels")
    draft = Draft.create("p", workflow="parcels").start().begin_node("step0")
    assert await commit(store, draft.transition(waits=[question("q")])) == [Committed()]

    expected = OpenWait(run_id=RunId("p"), workflow="parcels", run_status=RUNNING, wait=question("q"))

    assert list(await store.list_waits(limit=9)) == [expected]
    assert list(await store.list_waits(questions_only=True, limit=9)) == [expected]
    assert list(await store.list_waits(run_id=RunId("p"), limit=9)) == [expected]
    assert list(await store.list_waits(status=None, limit=9)) == [expected]
    assert await store.load_wait("q") == expected


async def test_waits_are_listed_by_status_and_kind(store: Store) -> None:
    draft, other = await begin(store), await begin(store)
    waits = [
        question("asked"),
        sleep("slept"),
        replace(question("stopped"), kind=WaitKind.SUSPEND),
        replace(sleep("signal"), kind=WaitKind.SIGNAL, signal="paid"),
    ]
    withdrawn = [
        replace(wait, wait_id=f"not {wait.wait_id}", status=WaitStatus.WITHDRAWN, settled_at=3) for wait in waits
    ]
    await put(store, draft, *waits, *withdrawn, answered(question("answered")))
    await put(store, other, answered(question("other")))
    asked = {"asked", "stopped"}
    unasked = {"not asked", "not stopped"}

    for run_id, others in ((None, {"other"}), (draft.run_id, set[str]())):
        listed: list[tuple[WaitStatus | None, bool, set[str]]] = [
            (WaitStatus.OPEN, False, asked | {"slept", "signal"}),
            (WaitStatus.OPEN, True, asked),
            (WaitStatus.WITHDRAWN, False, unasked | {"not slept", "not signal"}),
            (WaitStatus.WITHDRAWN, True, unasked),
            (WaitStatus.SETTLED, True, {"answered"} | others),
            (None, True, asked | unasked | {"answered"} | others),
            (None, False, {wait.wait_id for wait in (*waits, *withdrawn)} | {"answered"} | others),
        ]
        for status, questions_only, expected in listed:
            found = await pages(store, run_id=run_id, status=status, questions_only=questions_only)
            assert found == sorted(expected), (run_id, status, questions_only)


async def test_a_question_whose_answer_is_there_is_asked_no_more(store: Store) -> None:
    draft, other = await begin(store, "first"), await begin(store, "second")
    stopped = replace(question("c"), kind=WaitKind.SUSPEND)
    await put(store, draft, question("a"), question("b"), stopped, sleep("d"), answered(question("e")))
    await put(store, other, question("a of another"))
    for wait_id in ("a", "c", "d", "e"):
        await store.add_command(Command(command_id=CommandId(f"answer/{wait_id}"), run_id=draft.run_id, kind="answer"))
    await store.add_command(Command(command_id=CommandId("answer/b"), run_id=other.run_id, kind="answer"))

    assert await pages(store, questions_only=True) == ["a of another", "b"]
    assert await pages(store, run_id=draft.run_id, questions_only=True) == ["b"]
    assert await pages(store, run_id=draft.run_id, questions_only=True, status=None) == ["b", "e"]
    assert await pages(store, questions_only=True, status=WaitStatus.SETTLED) == ["e"]
    assert await pages(store, run_id=draft.run_id) == ["a", "b", "c", "d"]


async def test_only_the_current_branch_is_listed(store: Store) -> None:
    draft = await begin(store)
    root = question("q")
    second = replace(question("q", branch_id=SECOND_BRANCH), occurrence=5)
    await put(store, draft, root, second, question("left behind"))

    async def listed() -> list[list[OpenWait]]:
        return [
            list(await store.list_waits(limit=9)),
            list(await store.list_waits(questions_only=True, limit=9)),
            list(await store.list_waits(status=None, limit=9)),
            list(await store.list_waits(run_id=draft.run_id, limit=9)),
        ]

    before = [
        OpenWait(run_id=draft.run_id, workflow=WORKFLOW, run_status=RUNNING, wait=wait)
        for wait in (question("left behind"), root)
    ]
    assert await listed() == [before] * 4
    assert await store.load_wait("q") == before[1]
    assert await store.load_wait("left behind") == before[0]

    assert await commit(store, draft.add(e.BranchActivated(branch_id=SECOND_BRANCH)).transition()) == [Committed()]
    after = OpenWait(run_id=draft.run_id, workflow=WORKFLOW, run_status=RUNNING, wait=second)
    assert await listed() == [[after]] * 4
    assert await store.load_wait("q") == after
    assert await store.load_wait("left behind") is None


async def test_what_waits_in_another_project_is_not_seen(store: Store, open_another: OpenStore) -> None:
    elsewhere = await open_another(project_id="elsewhere")
    await save_workflow(elsewhere)
    draft = started("same")
    await commit(elsewhere, draft.transition(waits=[question("q")]))
    await begin(store, "same")

    assert await pages(store) == await pages(store, status=None) == await pages(store, run_id=draft.run_id) == []
    assert await store.load_wait("q") is None
    assert await pages(elsewhere) == await pages(elsewhere, run_id=draft.run_id) == ["q"]


async def test_a_wait_that_is_not_there(store: Store) -> None:
    draft = await begin(store)

    for name in ("nothing", NO_TEXT, ""):
        assert await store.load_wait(name) is None
        assert list(await store.list_waits(run_id=RunId(name), limit=9)) == []
        assert list(await store.list_waits(after=(0, name), limit=9)) == []
    assert await pages(store, run_id=draft.run_id) == []
