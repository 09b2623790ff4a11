"""`python -m bench`: measure perdure and its peers side by side and print the table."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from bench import limits, servers
from bench.measure import Bench, measure
from bench.places import ROOT
from bench.results import Cell, Results, cell_for, describe_machine
from bench.subjects import DATABASES, OWN, PEERS, POSTGRES, SUBJECTS, Subject
from bench.table import last_line, render
from bench.workloads import WORKLOADS, Measurement, median_of

COMPARED_WITH_LIMITS = "W1"
Place = tuple[Subject, str]
"""A subject and the store it is measured on."""


def main() -> None:
    arguments = _arguments()
    places = [
        (subject, store)
        for subject in _subjects(arguments.peers)
        for store in subject.stores
        if store in (*arguments.stores, OWN)
    ]
    profiles = ROOT / "profiles" if arguments.profile else None
    if profiles:
        profiles.mkdir(parents=True, exist_ok=True)
        places = [(subject, store) for subject, store in places if not subject.is_peer]
    with ExitStack() as stack:
        delay = arguments.commit_delay_micros
        postgres = None
        if POSTGRES in arguments.stores:
            postgres = stack.enter_context(servers.postgres(commit_delay_micros=delay))
        bench = Bench(
            postgres=postgres, quick=arguments.quick, timeout_seconds=arguments.timeout_seconds, profiles=profiles
        )
        machine = describe_machine() | ({"PostgreSQL": postgres.version} if postgres else {})
        if postgres and delay:
            machine["PostgreSQL"] += f", commits {delay} µs slower than the disk"
        machine["size"] = "a tenth (--quick)" if arguments.quick else "full"
        cells: list[Cell] = []
        raw: list[dict[str, float]] = []
        # An interrupted session still shows the workloads it has finished.
        with suppress(KeyboardInterrupt):
            if COMPARED_WITH_LIMITS not in arguments.workloads:
                raw.append(limits.measure_limits(postgres))
            for workload in arguments.workloads:
                cells += _measure_all(places, workload, arguments.repeat, bench, raw)
    if not raw:
        raise SystemExit("Interrupted before anything was measured.")
    medians = {name: statistics.median(figures[name] for figures in raw) for name in raw[0]}
    results = Results(cells=tuple(cells), limits=medians, machine=machine)
    print(render(results))
    if profiles:
        print(f"\nProfiles are in {profiles}; their figures are slower than those without.")
    if arguments.json:
        results.save(arguments.json)


def _measure_all(
    places: Sequence[Place], workload: str, repeat: int, bench: Bench, raw: list[dict[str, float]]
) -> Iterator[Cell]:
    """Measure one workload round by round: every subject has its turn before any has its second. The limits of the machine have
    theirs with the workload that is compared with them, and are added to `raw`."""
    contenders = [(subject, store) for subject, store in places if workload in subject.workloads]
    found: dict[tuple[str, str], list[Measurement]] = {}
    for round_number in range(repeat):
        if workload == COMPARED_WITH_LIMITS:
            raw.append(limits.measure_limits(bench.postgres))
        # Each round begins with another subject: a slow moment of the machine does not always meet the same one.
        shift = round_number * len(contenders) // repeat
        for subject, store in [*contenders[shift:], *contenders[:shift]]:
            measurement = measure(subject, workload, store, bench)
            found.setdefault((subject.key, store), []).append(measurement)
            _tell(workload, subject, store, measurement)
    for subject, store in contenders:
        measurements = found[subject.key, store]
        yield cell_for(subject, store, workload, median_of(measurements), len(measurements))


def _tell(workload: str, subject: Subject, store: str, measurement: Measurement) -> None:
    outcome = last_line(measurement.error) or f"{measurement.value:,.2f} {WORKLOADS[workload].unit}"
    print(f"{workload} {store} {subject.key}: {outcome}", file=sys.stderr, flush=True)


def _subjects(peers: Sequence[str]) -> list[Subject]:
    return [subject for subject in SUBJECTS if not subject.is_peer or subject.environment in peers]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--workloads", type=_names(WORKLOADS), default=list(WORKLOADS), help="such as W1,W3")
    parser.add_argument("--stores", type=_names(DATABASES), default=list(DATABASES), help="sqlite,postgres")
    parser.add_argument(
        "--peers",
        type=_names(PEERS),
        nargs="?",
        const=list(PEERS),
        default=[],
        help=f"measure peers too; all of them, or those named: {','.join(PEERS)}",
    )
    parser.add_argument("--repeat", type=int, default=3, help="repetitions, each in a fresh process (median)")
    parser.add_argument("--quick", action="store_true", help="a tenth of each workload's size")
    parser.add_argument(
        "--commit-delay-micros",
        type=int,
        default=0,
        help="have PostgreSQL take so much longer for every commit, of whomever, as on a slower disk",
    )
    parser.add_argument("--timeout-seconds", type=float, default=600, help="the most that one measurement may take")
    parser.add_argument("--profile", action="store_true", help="profile perdure alone instead of comparing it")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    return parser.parse_args()


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a converter of `a,b` to a list of known names."""
    allowed = list(known)

    def convert(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        unknown = [name for name in names if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(allowed)}")
        return names

    return convert


if __name__ == "__main__":
    main()
