"""What is measured: the workloads, the bodies of their steps, and the record of one measurement.

Everything here runs in every subject's own environment, so it needs nothing but the standard library and psutil.
"""

from __future__ import annotations

import base64
import gc
import itertools
import json
import os
import random
import signal
import statistics
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

KILLED_AT = 0.5
"""The share of W4's steps after which the process is killed."""
WAKES = 100
"""How many of W5's waiting runs are woken, one after the other, for the latency."""
TEXT_CHARACTERS = 1_000_000
STRETCHES = 10
"""Into how many parts W7's items are divided, to see whether the last are as fast as the first."""
FASTEST_IS_LOWEST = frozenset({"W4"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much work. `steps` counts per run."""

    runs: int = 1
    steps: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One kind of work, and its full size."""

    name: str
    title: str
    unit: str
    size: Size


def _workload(name: str, title: str, unit: str, **size: int) -> Workload:
    return Workload(name=name, title=title, unit=unit, size=Size(**size))


WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        _workload("W1", "one run, a chain of 1,000 steps", "steps/s", steps=1_000),
        _workload("W2", "1,000 runs of 10 steps in sequence", "steps/s", runs=1_000, steps=10),
        _workload("W3", "one run: 1, then 1,000 in parallel, then 1", "steps/s", steps=1_000),
        _workload("W4", "a chain of 1,000 killed half-way: start to first new step", "seconds", steps=1_000),
        _workload("W5", "10,000 runs waiting for an outside event", "starts/s", runs=10_000),
        _workload("W6", "a chain of 100 steps returning 1 MB of text each", "MB/s", steps=100),
        _workload("W7", "100,000 items through a no-op map", "items/s", steps=100_000),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One measurement to make, as it is handed to the process that makes it."""

    subject: str
    workload: str
    store: str
    store_url: str
    workdir: Path
    size: Size
    variant: str = ""
    server_pid: int | None = None
    resumed: bool = False
    profile: str | None = None

    @property
    def runs(self) -> int:
        return self.size.runs

    @property
    def steps(self) -> int:
        return self.size.steps

    @property
    def database_file(self) -> Path:
        """The file behind a `sqlite:///` URL."""
        return Path(self.store_url.removeprefix("sqlite:///"))

    @property
    def ledger(self) -> Path:
        """Where W4's steps leave their marks."""
        return self.workdir / "ledger"

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Task:
        fields: dict[str, Any] = json.loads(text)
        fields["workdir"], fields["size"] = Path(fields["workdir"]), Size(**fields["size"])
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one process found. `more` holds the figures beside the main one, `notes` what a reader must know."""

    value: float
    more: Mapping[str, float] = field(default_factory=dict[str, float])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: str = ""
    error: str = ""


def median_of(measurements: Sequence[Measurement]) -> Measurement:
    """Return the median of each figure. Repetitions that failed are left out and counted in the notes."""
    good = [m for m in measurements if not m.error]
    if not good:
        return measurements[-1]
    failed = len(measurements) - len(good)
    notes = [good[-1].notes] + ([f"{failed} of {len(measurements)} repetitions failed"] if failed else [])
    return Measurement(
        value=statistics.median(m.value for m in good),
        more={key: statistics.median(m.more[key] for m in good) for key in good[0].more},
        versions=good[-1].versions,
        notes="; ".join(note for note in notes if note),
    )


# The bodies. Subjects wrap these in whatever their engine calls a step.


def count(state: dict[str, int]) -> dict[str, int]:
    """W1, W2, W3: a trivial step with a small result."""
    return {"n": state["n"] + 1}


class Texts:
    """W6: texts of 1 MB, each different, that do not compress beyond their base64 alphabet."""

    def __init__(self) -> None:
        raw = random.Random(6).randbytes(TEXT_CHARACTERS)
        self._source = base64.b64encode(raw).decode("ascii")

    def after(self, state: dict[str, Any]) -> dict[str, Any]:
        n: int = state["n"] + 1
        return {"n": n, "text": self._source[n : n + TEXT_CHARACTERS]}


class Ledger:
    """W4: marks each step on disk and kills the process in the middle.

    The kill comes inside a step, before its mark: every step with a mark had returned, and in a chain the engine had
    gone on to another. A mark that appears twice is completed work that was done again.
    """

    def __init__(self, task: Task) -> None:
        self._file = os.open(task.ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._kill_at = None if task.resumed else int(task.steps * KILLED_AT)

    def step(self, state: dict[str, int]) -> dict[str, int]:
        n = state["n"] + 1
        if n == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(self._file, f"{n} {time.monotonic()} {os.getpid()}\n".encode())
        return {"n": n}


class Stretches:
    """W7: counts the items, and notes when each tenth of them begins."""

    def __init__(self, items: int) -> None:
        self.count = 0
        self._length = max(1, items // STRETCHES)
        self._begun: dict[int, float] = {}

    def passed(self, number: int) -> None:
        self.count += 1
        if number % self._length == 0:
            self._begun[number // self._length] = time.perf_counter()

    def rates(self) -> dict[str, float]:
        """Return the items per second of the first stretch, of the last that is whole, and of the slowest."""
        moments = [self._begun[number] for number in sorted(self._begun)]
        rates = [self._length / (end - begin) for begin, end in itertools.pairwise(moments)]
        return {"first_stretch": rates[0], "last_stretch": rates[-1], "slowest_stretch": min(rates)}


# What subjects measure with.


class Stopwatch:
    seconds: float = 0.0


@contextmanager
def stopwatch() -> Generator[Stopwatch]:
    """Time the block."""
    watch = Stopwatch()
    started = time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - started


def rate(amount: float, watch: Stopwatch, **rest: Any) -> Measurement:
    return Measurement(value=amount / watch.seconds, **rest)


def megabytes(task: Task, watch: Stopwatch, **rest: Any) -> Measurement:
    return rate(task.steps * TEXT_CHARACTERS / 1e6, watch, **rest)


def resident_bytes(pid: int | None = None) -> int:
    """Return the memory that the process holds, without garbage; its own if no other is named."""
    gc.collect()
    return int(psutil.Process(pid).memory_info().rss)


@dataclass(slots=True)
class Waiting:
    """W5's figures, gathered in order: `idle`, then the starts, then `waiting`, then one `woken` per wake."""

    task: Task
    idle_bytes: int = 0
    idle_server_bytes: int = 0
    waiting_bytes: int = 0
    waiting_server_bytes: int = 0
    wake_seconds: list[float] = field(default_factory=list[float])

    def idle(self) -> None:
        self.idle_bytes, self.idle_server_bytes = resident_bytes(), self._server_bytes()

    def waiting(self) -> None:
        self.waiting_bytes, self.waiting_server_bytes = resident_bytes(), self._server_bytes()

    def woken(self, sent: float, continued: float) -> None:
        """Both moments by `time.perf_counter`."""
        self.wake_seconds.append(continued - sent)

    def measurement(self, starting: Stopwatch, notes: str = "") -> Measurement:
        runs = self.task.runs
        more = {
            "kb_per_run": (self.waiting_bytes - self.idle_bytes) / 1024 / runs,
            "wake_ms": statistics.median(self.wake_seconds) * 1_000,
        }
        if self.task.server_pid is not None:
            more["server_kb_per_run"] = (self.waiting_server_bytes - self.idle_server_bytes) / 1024 / runs
        return rate(runs, starting, more=more, notes=notes)

    def _server_bytes(self) -> int:
        return 0 if self.task.server_pid is None else resident_bytes(self.task.server_pid)


def expect(actual: object, wanted: object) -> None:
    """A figure counts only if the work was done."""
    if actual != wanted:
        raise AssertionError(f"wrong result: {actual!r} instead of {wanted!r}")
