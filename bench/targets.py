"""What perdure must reach, checked against a session's results. Ratios are to the best peer in the same session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.results import Cell, Results
from bench.subjects import OWN, POSTGRES, SQLITE

MIB_OF_WAITING_RUNS = 10.0
WAITING_RUNS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One requirement and what was found. `passed` is None where something it needs was not measured."""

    requirement: str
    found: str
    passed: bool | None


# A server with its own storage is compared with SQLite: both are what one starts with, on one machine.
_RIVALS = {SQLITE: (SQLITE, OWN), POSTGRES: (POSTGRES,)}
_RATIOS = {
    ("W1", SQLITE): (2.0, (SQLITE,)),
    ("W1", POSTGRES): (1.6, (POSTGRES,)),
    **{(workload, store): (factor, _RIVALS[store])
       for workload, factor in (("W2", 6.0), ("W3", 12.0), ("W5", 4.0), ("W6", 1.2))
       for store in (SQLITE, POSTGRES)},
}  # fmt: skip
_RAW = {SQLITE: ("SQLite, 1 per commit", 0.35), POSTGRES: ("PostgreSQL, 1 per commit", 0.60)}


def check(results: Results) -> Sequence[Verdict]:
    """Return every requirement with its verdict, in the order of the workloads."""
    verdicts = [_ratio(results, *place, *wanted) for place, wanted in _RATIOS.items()]
    for store in (SQLITE, POSTGRES):
        verdicts += [
            _share_of_raw(results, store),
            _at_least(results, "perdure, pure nodes", "W1", store, 5_000),
            _at_least(results, "perdure, durability async", "W1", store, 5_000),
            *(_plain_bodies(results, workload, store) for workload in ("W1", "W2", "W3")),
            _restart(results, store),
            _waiting_memory(results, store),
            _wake(results, store),
            _at_least(results, "perdure", "W7", store, 10_000),
        ]
    return sorted(verdicts, key=lambda verdict: verdict.requirement)


def _ratio(results: Results, workload: str, store: str, factor: float, rivals: Sequence[str]) -> Verdict:
    requirement = f"{workload} {store}: {factor:g}x the best peer"
    ours, best = results.find("perdure", workload, store), results.best_peer(workload, rivals)
    if ours is None or best is None:
        return _not_measured(requirement)
    ratio = ours.value / best.value
    found = f"{ratio:.2f}x {best.subject} ({ours.value:,.0f} to {best.value:,.0f} {ours.unit})"
    return Verdict(requirement=requirement, found=found, passed=ratio >= factor)


def _share_of_raw(results: Results, store: str) -> Verdict:
    name, wanted = _RAW[store]
    requirement = f"W1 {store}: {wanted:.0%} of the raw rate of one transition per commit"
    ours, raw = results.find("perdure", "W1", store), results.limits.get(name)
    if ours is None or raw is None:
        return _not_measured(requirement)
    share = ours.value / raw
    return Verdict(requirement=requirement, found=f"{share:.0%} of {raw:,.0f}", passed=share >= wanted)


def _at_least(results: Results, subject: str, workload: str, store: str, wanted: float) -> Verdict:
    ours = results.find(subject, workload, store)
    requirement = f"{workload} {store}: {subject}: {wanted:,.0f} per second"
    if ours is None:
        return _not_measured(requirement)
    return Verdict(requirement=requirement, found=f"{ours.value:,.0f}", passed=ours.value >= wanted)


def _plain_bodies(results: Results, workload: str, store: str) -> Verdict:
    requirement = f"{workload} {store}: plain bodies reach 60% of async ones"
    plain, on_loop = results.find("perdure, def bodies", workload, store), results.find("perdure", workload, store)
    if plain is None or on_loop is None:
        return _not_measured(requirement)
    share = plain.value / on_loop.value
    return Verdict(requirement=requirement, found=f"{share:.0%}", passed=share >= 0.60)


def _restart(results: Results, store: str) -> Verdict:
    requirement = f"W4 {store}: first new step within 0.6 s, nothing completed runs twice"
    ours = results.find("perdure", "W4", store)
    if ours is None:
        return _not_measured(requirement)
    repeated = ours.measurement.more["repeated"]
    found = f"{ours.value:.2f} s, {repeated:.0f} twice"
    return Verdict(requirement=requirement, found=found, passed=ours.value <= 0.6 and repeated == 0)


def _waiting_memory(results: Results, store: str) -> Verdict:
    requirement = f"W5 {store}: {WAITING_RUNS:,} waiting runs within {MIB_OF_WAITING_RUNS:g} MiB of an idle process"
    ours = results.find("perdure", "W5", store)
    if ours is None:
        return _not_measured(requirement)
    mib = ours.measurement.more["kb_per_run"] * WAITING_RUNS / 1024
    return Verdict(requirement=requirement, found=f"{mib:.1f} MiB", passed=mib <= MIB_OF_WAITING_RUNS)


def _wake(results: Results, store: str) -> Verdict:
    requirement = f"W5 {store}: woken within 2.4 ms (median)"
    ours: Cell | None = results.find("perdure", "W5", store)
    if ours is None:
        return _not_measured(requirement)
    wake_ms = ours.measurement.more["wake_ms"]
    return Verdict(requirement=requirement, found=f"{wake_ms:.2f} ms", passed=wake_ms <= 2.4)


def _not_measured(requirement: str) -> Verdict:
    return Verdict(requirement=requirement, found="not measured", passed=None)
