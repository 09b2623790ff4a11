"""What happens when a run is started: its name, settings and inputs are checked, and it begins unless it is there already."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from perdure.engine.attempts.values import Values
from perdure.engine.driving.catalogue import Prepared
from perdure.engine.driving.driver import Driver
from perdure.engine.recording.machinery import Machinery
from perdure.errors import TruthUnclear, WrongInputs
from perdure.graph.declare import RunSettings as WorkflowSettings
from perdure.graph.model import CONDITION, Edge
from perdure.graph.plan import Plan
from perdure.graph.policy import is_duration
from perdure.ids import MOST_RUN_ID_CHARS, ROOT_BRANCH, Epoch, RunId, Seq, is_text, why_no_run_id
from perdure.journal import events as e
from perdure.journal.evolve import create_run
from perdure.journal.forking import Taken
from perdure.journal.projection import Projection
from perdure.journal.states import RunState
from perdure.journal.truth import truths_of
from perdure.journal.values import is_true, part_of
from perdure.store.codecs import canonical, content_refs
from perdure.store.codecs.wire import whole_reference
from perdure.store.transitions import Claim

FIRST_EPOCH = Epoch(1)


def checked_run_id(run_id: str) -> RunId:
    """Return a run's id as it was given. Raises ValueError if it is empty or no text that a database can hold."""
    if not isinstance(run_id, str) or not run_id or not is_text(run_id) or "\x00" in run_id:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(
            f"run_id={run_id!r} names no run: give a text that is not empty and that UTF-8 can hold, without NUL, or leave it out"
        )
    return RunId(run_id)


def chosen_run_id(run_id: str) -> RunId:
    """Return the id that somebody has chosen for a run that is to begin. Raises ValueError as `checked_run_id` does, and for one
    that people could not read or write down. An id that is made of others, or that is there already, may be such a one."""
    checked = checked_run_id(run_id)
    if (problem := why_no_run_id(checked)) is not None:
        shown = checked if len(checked) <= MOST_RUN_ID_CHARS else f"{checked[:50]}…"
        raise ValueError(f"run_id={shown!r} cannot be the id of a run: {problem}")
    return checked


def run_settings(
    preset: WorkflowSettings,
    *,
    durability: e.Durability | None,
    on_failure: e.OnFailure | None,
    timeout: float | timedelta | None,
    checkpoint_every: float | timedelta | None = None,
    journal: e.Journal = "log",
) -> e.RunSettings:
    """Return the settings of a run: those that are given, else the workflow's own. Raises ValueError for a wrong one."""
    if durability is None and on_failure is None and timeout is None and checkpoint_every is None:
        return _preset_settings(preset, journal)
    return _chosen_settings(preset, durability, on_failure, timeout, checkpoint_every, journal)


@functools.lru_cache(maxsize=128)
def _preset_settings(preset: WorkflowSettings, journal: e.Journal) -> e.RunSettings:
    return _chosen_settings(preset, None, None, None, None, journal)


def _chosen_settings(
    preset: WorkflowSettings,
    durability: e.Durability | None,
    on_failure: e.OnFailure | None,
    timeout: float | timedelta | None,
    checkpoint_every: float | timedelta | None,
    journal: e.Journal,
) -> e.RunSettings:
    chosen = {
        "durability": durability or preset.durability,
        "on_failure": on_failure or preset.on_failure,
        "timeout_seconds": _seconds("timeout", timeout, preset.timeout),
        "checkpoint_every_seconds": _seconds("checkpoint_every", checkpoint_every, preset.checkpoint_every),
        "journal": journal,
    }
    try:
        return msgspec.convert({key: value for key, value in chosen.items() if value is not None}, e.RunSettings)
    except msgspec.ValidationError as error:
        raise ValueError(f"a setting of the run is wrong: {error}") from None


def _seconds(name: str, given: float | timedelta | None, preset: timedelta | None) -> float | None:
    chosen = preset if given is None else given
    if chosen is not None and not is_duration(chosen, above=timedelta(0)):
        raise ValueError(f"{name}={chosen!r} is no time above zero, in seconds or as a timedelta")
    return chosen.total_seconds() if isinstance(chosen, timedelta) else chosen


def creation(
    prepared: Prepared,
    given: Mapping[str, Any],
    encoded: dict[str, e.Encoded],
    settings: e.RunSettings,
    *,
    project_id: str,
) -> e.RunCreated:
    """Return the first event of a run with these inputs. Raises WrongInputs if decisions would misread them."""
    if problems := dict.fromkeys(_unclear_inputs(prepared.plan, given, encoded)):
        raise WrongInputs(prepared.graph.name, list(problems))
    return e.RunCreated(
        workflow=prepared.version.workflow,
        version=prepared.version.version,
        graph_hash=prepared.version.graph_hash,
        inputs=encoded,
        settings=settings,
        project_id=project_id,
        source=prepared.source,
    )


async def differences(there: RunState, created: e.RunCreated, values: Values) -> AsyncIterator[str]:
    """Yield in what the run that is there was started differently."""
    if there.workflow != created.workflow:
        yield "workflow"
    elif there.graph_hash != created.graph_hash:
        changed = ", which has changed since" if created.version > there.version else ""
        yield f"version {there.version} of the workflow{changed}"
    async for what in _differing_inputs(there, created.inputs, values):
        yield what


async def differences_from_unsaved(
    there: RunState, workflow: str, inputs: Mapping[str, e.Encoded], values: Values
) -> AsyncIterator[str]:
    """Yield the same where what is to be started has no version: so it is not that of the run that is there."""
    yield (
        "workflow"
        if there.workflow != workflow
        else f"version {there.version} of the workflow, which has changed since"
    )
    async for what in _differing_inputs(there, inputs, values):
        yield what


def _unclear_inputs(plan: Plan, given: Mapping[str, Any], encoded: Mapping[str, e.Encoded]) -> Iterator[str]:
    """Yield what is wrong with inputs that conditions and outputs look at: decisions see their stored form alone."""
    for edge in plan.looked_at:
        name = edge.source_handle
        if name not in encoded:
            continue
        if edge.path and whole_reference(encoded[name]) is not None:
            yield f"input {name!r} is too large to be looked into by a condition or an output: have a node take it apart"
        elif edge.target_handle == CONDITION and not _is_clear(given[name], encoded[name], edge):
            yield f"input {name!r} is not stored so that a condition could tell whether it is true: pass bool(…) of it"


def _is_clear(value: Any, encoded: e.Encoded, edge: Edge) -> bool:
    """Whether the stored form is true where the value itself is."""
    try:
        truths = truths_of({edge.source_handle: value}, [(edge.source_handle, edge.path)], edge.source)
        return all(truth == is_true(part_of(encoded, edge.path)) for truth in truths.values())
    except (TruthUnclear, LookupError):
        return False


async def _differing_inputs(there: RunState, inputs: Mapping[str, e.Encoded], values: Values) -> AsyncIterator[str]:
    """Yield which inputs of the run that is there are others."""
    for name in sorted(there.inputs.keys() | inputs.keys()):
        one, other = there.inputs.get(name), inputs.get(name)
        if one is None or other is None or not await _are_equal(one, other, values):
            yield f"input {name!r}"


async def _are_equal(one: e.Encoded, other: e.Encoded, values: Values) -> bool:
    if canonical(one) == canonical(other):
        return True
    if not content_refs(one) and not content_refs(other):
        return False
    # What is kept apart from the run depends on a setting of the engine that started it.
    return canonical(await values.inlined(one)) == canonical(await values.inlined(other))


def begin(
    run_id: RunId,
    created: e.RunCreated,
    prepared: Prepared,
    machinery: Machinery,
    claim: Claim,
    *,
    on_gone: Callable[[Driver], None],
    at: int,
    resolved: e.VersionResolved | None = None,
    taken: Taken | None = None,
) -> Driver:
    """Set up a run of our own: created, claimed and started in one transition, which also says what an alias meant and what comes
    from another run."""
    run = create_run(run_id, created, at=at, branch_id=ROOT_BRANCH, epoch=Epoch(0))
    driver = Driver(
        projection=Projection(run),
        program=prepared.program,
        machinery=machinery,
        base_seq=Seq(0),
        claim=claim,
        seen_epoch=Epoch(0),
        on_gone=on_gone,
        created=(created, at),
    )
    driver.decider.claim(claim.engine_id, FIRST_EPOCH, previous=None, lost=False, at=at)
    if resolved is not None:
        driver.decider.resolve_version(resolved, at=at)
    driver.decider.start(at=at)
    if taken is not None and created.forked_from is not None:
        reason = f"forked from run {created.forked_from.run_id} at event {created.forked_from.seq}"
        driver.decider.take_over(taken, reason=reason, at=at)
    return driver
