"""`python -m bench.growth`: how cost grows with size, what restarting, journalling and saving cost, how fast it starts.

Growth is fitted as time = c * n^e by least squares on logarithms: e is 1 where cost is linear. Each point is a fresh
process.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import servers
from bench.measure import Bench, measure
from bench.subjects import DATABASES, POSTGRES, SQLITE, SUBJECTS, Subject
from bench.workloads import Measurement, Size

LINEAR = 1.15
"""The largest exponent that counts as linear: caches and logarithms in the databases are not our growth."""
NODES = (1_000, 2_000, 5_000, 10_000)
RUNS = (100, 1_000, 3_000, 10_000)
ITEMS = (10_000, 100_000, 300_000, 1_000_000)
STARTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One workload at growing sizes."""

    name: str
    workload: str
    sizes: tuple[Size, ...]

    @staticmethod
    def amount(size: Size) -> int:
        return size.runs * size.steps


SERIES = (
    Series(name="chain, nodes", workload="W1", sizes=tuple(Size(steps=n) for n in NODES)),
    Series(name="fan, nodes", workload="W3", sizes=tuple(Size(steps=n) for n in NODES)),
    Series(name="runs of 2 steps", workload="W2", sizes=tuple(Size(runs=n, steps=2) for n in RUNS)),
    Series(name="waiting runs", workload="W5", sizes=tuple(Size(runs=n) for n in RUNS)),
    Series(name="items of a stream", workload="W7", sizes=tuple(Size(steps=n) for n in ITEMS)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """`amount` steps, starts or items took `seconds` in a process that held at most `peak_mib`."""

    amount: int
    seconds: float
    peak_mib: float
    first_stretch: float | None = None
    last_stretch: float | None = None
    """The rates of the first and of the last tenth of the items, where there are some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    series: str
    store: str
    points: tuple[Point, ...]
    exponent: float
    error: str = ""


def main() -> None:
    arguments = _arguments()
    found: dict[str, object] = {}
    with ExitStack() as stack:
        postgres = stack.enter_context(servers.postgres()) if POSTGRES in arguments.stores else None
        bench = Bench(postgres=postgres, quick=False, timeout_seconds=arguments.timeout_seconds)
        for store in arguments.stores:
            chosen = [series for series in SERIES if series.workload in arguments.workloads]
            growths = [measure_growth(series, store, bench, arguments.points) for series in chosen]
            for growth in growths:
                print(describe(growth), flush=True)
            restart = {steps: measure(_subject(""), "W4", store, bench, Size(steps=steps)).value for steps in NODES}
            print(
                f"{store}: restart, seconds to the first new step by nodes in the run: {_figures(restart)}", flush=True
            )
            items = {
                steps: measure(_subject("items of a stream"), "W4", store, bench, Size(steps=steps)).value
                for steps in ITEMS[: arguments.points]
            }
            print(f"{store}: restart, seconds to the first new item by items in the run: {_figures(items)}", flush=True)
            journal = measure_journal(store, bench)
            print(f"{store}: journal, per step: {_figures(journal)}", flush=True)
            saving = measure_saving(store, bench)
            print(f"{store}: a graph of {NODES[0]:,} nodes, before its first run: {_figures(saving)}", flush=True)
            found[store] = {
                "growth": [asdict(growth) for growth in growths],
                "restart": restart,
                "restart of items": items,
                "journal": journal,
                "saving": saving,
            }
    found["start-up"] = startup = measure_startup()
    print(f"start-up, ms: {_figures(startup)}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


def measure_growth(series: Series, store: str, bench: Bench, number: int) -> Growth:
    """Return the fitted growth over the first `number` sizes of the series."""
    points: list[Point] = []
    for size in series.sizes[:number]:
        measurement = measure(_subject(""), series.workload, store, bench, size)
        if measurement.error:
            return Growth(series=series.name, store=store, points=(), exponent=math.nan, error=measurement.error)
        points.append(_point(Series.amount(size), measurement))
    fitted = exponent([(point.amount, point.seconds) for point in points])
    return Growth(series=series.name, store=store, points=tuple(points), exponent=fitted)


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return e of the best fit y = c * x^e."""
    return statistics.linear_regression([math.log(x) for x, _ in points], [math.log(y) for _, y in points]).slope


def describe(growth: Growth) -> str:
    if growth.error:
        return f"{growth.store}: {growth.series}: {growth.error.strip().splitlines()[-1]}"
    verdict = "linear" if growth.exponent <= LINEAR else "MORE THAN LINEAR"
    points = ", ".join(f"{p.amount:,}: {p.seconds:.2f} s {p.peak_mib:.0f} MiB{_stretches(p)}" for p in growth.points)
    return f"{growth.store}: {growth.series}: n^{growth.exponent:.2f} ({verdict}); {points}"


def measure_journal(store: str, bench: Bench) -> dict[str, float]:
    """Return what making a step durable costs: the time that `exit` saves, and the bytes that `sync` writes."""
    steps = Size(steps=NODES[0])
    synced = measure(_subject(""), "W1", store, bench, steps)
    deferred = measure(_subject("durability exit"), "W1", store, bench, steps)
    if synced.error or deferred.error:
        return {}
    figures = {"sync_ms": 1_000 / synced.value, "exit_ms": 1_000 / deferred.value}
    figures["journal_ms"] = figures["sync_ms"] - figures["exit_ms"]
    if store == SQLITE:
        figures["bytes_written"] = synced.more["written_mib"] * 1024 * 1024 / steps.steps
    elif bench.postgres is not None:
        before = bench.postgres.written_bytes()
        measure(_subject(""), "W1", store, bench, steps)
        figures["bytes_written"] = (bench.postgres.written_bytes() - before) / steps.steps
    return figures


def measure_saving(store: str, bench: Bench) -> dict[str, float]:
    """Return the milliseconds that tracing a chain takes, and then saving it for the first time."""
    found = [measure(_subject(""), "W1", store, bench, Size(steps=NODES[0])) for _ in range(STARTS)]
    good = [measurement.more for measurement in found if not measurement.error]
    return {name: statistics.median(more[name] for more in good) for name in ("trace_ms", "save_ms")} if good else {}


def measure_startup() -> dict[str, float]:
    """Return milliseconds for what a user waits for before anything of theirs runs."""
    importing = "import time; t = time.perf_counter(); import perdure; print((time.perf_counter() - t) * 1000)"
    imports = [_output_of([sys.executable, "-c", importing]) for _ in range(STARTS)]
    helps = [_milliseconds([str(Path(sys.executable).parent / "perdure"), "--help"]) for _ in range(STARTS)]
    return {
        "import perdure": statistics.median(float(text) if text else math.nan for text in imports),
        "perdure --help": statistics.median(helps),
    }


def _stretches(point: Point) -> str:
    if point.first_stretch is None or point.last_stretch is None:
        return ""
    return f" (first tenth {point.first_stretch:,.0f}/s, last {point.last_stretch:,.0f}/s)"


def _point(amount: int, measurement: Measurement) -> Point:
    return Point(
        amount=amount,
        seconds=amount / measurement.value,
        peak_mib=measurement.more["peak_mib"],
        first_stretch=measurement.more.get("first_stretch"),
        last_stretch=measurement.more.get("last_stretch"),
    )


def _subject(variant: str) -> Subject:
    return next(subject for subject in SUBJECTS if not subject.is_peer and subject.variant == variant)


def _output_of(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _milliseconds(command: Sequence[str]) -> float:
    started = time.perf_counter()
    try:
        subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return math.nan
    return (time.perf_counter() - started) * 1_000


def _figures(figures: dict[str, float] | dict[int, float]) -> str:
    return ", ".join(f"{name} {value:,.2f}" for name, value in figures.items()) or "not measured"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("--stores", type=lambda text: text.split(","), default=list(DATABASES), help="sqlite,postgres")
    parser.add_argument(
        "--workloads",
        type=lambda text: text.split(","),
        default=[series.workload for series in SERIES],
        help="whose growth is measured, such as W7",
    )
    parser.add_argument("--points", type=int, default=4, help="how many sizes of each series, from the smallest")
    parser.add_argument("--timeout-seconds", type=float, default=600, help="the most that one measurement may take")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
