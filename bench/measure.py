"""Makes one measurement in a fresh process, with a fresh database, and never longer than allowed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.places import PROJECT, scratch
from bench.servers import SERVERS, Postgres, ServerFailed
from bench.subjects import POSTGRES, SQLITE, Subject
from bench.venvs import NotInstalled, python_for
from bench.workloads import KILLED_AT, WORKLOADS, Measurement, Size, Task

QUICK_SHARE = 0.1
SURROUNDINGS = {
    # Who starts a program twice finds it compiled, as anybody's is who uses it.
    "PYTHONDONTWRITEBYTECODE": "",
    # No peer calls home from a benchmark.
    "DO_NOT_TRACK": "1",
    "LANGSMITH_TRACING": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RESTATE_DISABLE_TELEMETRY": "true",
}


class ChildFailed(Exception):
    """The measuring process ended badly. Carries the end of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all measurements of one session share."""

    postgres: Postgres | None
    quick: bool
    timeout_seconds: float
    profiles: Path | None = None


def measure(subject: Subject, workload: str, store: str, bench: Bench, size: Size | None = None) -> Measurement:
    """Return what was found, at the workload's size for this subject unless another is given.

    A subject that cannot be installed, started or finished gives the reason as `error`.
    """
    try:
        python = python_for(subject.environment, subject.packages)
        with scratch("work") as workdir, _place(subject, store, workdir, python, bench) as (url, server_pid):
            task = Task(
                subject=subject.key,
                workload=workload,
                store=store,
                store_url=url,
                workdir=workdir,
                size=size or _size(subject, workload, bench),
                variant=subject.variant,
                server_pid=server_pid,
                profile=_profile(subject, workload, store, bench),
            )
            found = _restart(python, task, bench) if workload == "W4" else _run(python, task, bench)
            _check_still_durable(task, subject.journal_mode)
            return replace(
                found, notes="; ".join(note for note in (found.notes, _size_note(subject, workload)) if note)
            )
    except (NotInstalled, ServerFailed, ChildFailed) as error:
        return Measurement(value=0.0, error=f"{type(error).__name__}: {error}")


@contextmanager
def _place(
    subject: Subject, store: str, workdir: Path, python: Path, bench: Bench
) -> Generator[tuple[str, int | None]]:
    """Yield the URL of an empty database or a fresh server, and the server's process id if it is the subject's own."""
    if store == SQLITE:
        file = workdir / "bench.db"
        # The journal mode is a property of the file: no subject can forget it. FULL is every connection's default.
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(f"PRAGMA journal_mode={subject.journal_mode}")
        yield f"sqlite:///{file}", None
    elif store == POSTGRES:
        if bench.postgres is None:
            raise ServerFailed("PostgreSQL is not running")
        with bench.postgres.database(workdir.name.replace("-", "_").lower()) as url:
            yield url, None
    else:
        with SERVERS[subject.server or ""](workdir, python) as (url, pid):
            yield url, pid


def _size(subject: Subject, workload: str, bench: Bench) -> Size:
    full = WORKLOADS[workload].size
    share = subject.share.get(workload, 1.0) * (QUICK_SHARE if bench.quick else 1.0)
    if full.runs > 1:
        return Size(runs=max(10, round(full.runs * share)), steps=full.steps)
    return Size(runs=1, steps=max(10, round(full.steps * share)))


def _profile(subject: Subject, workload: str, store: str, bench: Bench) -> str | None:
    name = f"{subject.key}-{workload}-{store}".replace(",", "").replace(" ", "-")
    return str(bench.profiles / name) if bench.profiles else None


def _run(python: Path, task: Task, bench: Bench) -> Measurement:
    code, output = _spawn(python, task, bench)
    if code != 0:
        raise ChildFailed(output)
    return Measurement(**json.loads((task.workdir / "result.json").read_text()))


def _restart(python: Path, task: Task, bench: Bench) -> Measurement:
    """W4: run until killed, start again, and read from the ledger what the second process did."""
    code, output = _spawn(python, task, bench)
    if code != -signal.SIGKILL:
        raise ChildFailed(f"was to be killed half-way, ended with {code}: {output}")
    started = time.monotonic()
    found = _run(python, replace(task, resumed=True), bench)
    marks = [line.split() for line in task.ledger.read_text().splitlines()]
    last_pid = marks[-1][2]
    fresh = [float(moment) for step, moment, pid in marks if int(step) >= task.steps * KILLED_AT and pid == last_pid]
    times = Counter(int(step) for step, _, _ in marks)
    if set(times) != set(range(1, task.steps + 1)):
        raise ChildFailed(f"only {len(times)} of {task.steps} steps ran")
    repeated = sum(1 for count in times.values() if count > 1)
    return replace(found, value=min(fresh) - started, more={**found.more, "repeated": repeated})


def _spawn(python: Path, task: Task, bench: Bench) -> tuple[int, str]:
    """Run the child and return its exit code and the end of what it wrote."""
    log = task.workdir / "child.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [python, "-m", "bench.child", task.to_json()],
            cwd=task.workdir,
            env={**os.environ, **SURROUNDINGS, "PYTHONPATH": str(PROJECT)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = child.wait(bench.timeout_seconds)
    except subprocess.TimeoutExpired as expired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise ChildFailed(f"not done after {bench.timeout_seconds:.0f} s") from expired
    return code, log.read_text(errors="replace").strip()[-1_500:]


def _check_still_durable(task: Task, expected: str) -> None:
    if task.store != SQLITE:
        return
    with closing(sqlite3.connect(task.database_file)) as connection:
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode != expected:
        raise ChildFailed(f"the subject changed the journal mode to {mode}")


def _size_note(subject: Subject, workload: str) -> str:
    share = subject.share.get(workload)
    return f"at {share:.0%} of the size" if share else ""
