"""The process that makes one measurement: `python -m bench.child TASK`, in the subject's own environment."""

from __future__ import annotations

import cProfile
import dataclasses
import importlib
import importlib.metadata
import json
import os
import pstats
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from bench.subjects import SQLITE, SUBJECTS, Subject
from bench.workloads import Measurement, Task

PROFILE_LINES = 40


def main() -> None:
    task = Task.from_json(sys.argv[1])
    subject = next(subject for subject in SUBJECTS if subject.key == task.subject)
    replace_old_sqlite()
    measure = getattr(importlib.import_module(subject.module), task.workload.lower())
    profiler = cProfile.Profile() if task.profile else None
    measurement: Measurement = profiler.runcall(measure, task) if profiler else measure(task)
    if profiler:
        profiler.dump_stats(f"{task.profile}.prof")
        with open(f"{task.profile}.txt", "w") as text:
            pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(PROFILE_LINES)
    measurement = dataclasses.replace(
        measurement,
        more={**measurement.more, **_footprint()},
        versions={**_versions(subject, task), **measurement.versions},
    )
    (task.workdir / "result.json").write_text(json.dumps(dataclasses.asdict(measurement)))
    sys.stdout.flush()
    # Engines leave threads and waiting runs behind; the measurement is over.
    os._exit(0)


def replace_old_sqlite() -> None:
    """Let `import sqlite3` find the newer SQLite of `pysqlite3`, where the environment has it."""
    with suppress(ImportError):
        sys.modules["sqlite3"] = importlib.import_module("pysqlite3")
        sys.modules["sqlite3.dbapi2"] = importlib.import_module("pysqlite3.dbapi2")


def _versions(subject: Subject, task: Task) -> dict[str, str]:
    names = [re.split(r"[=<>\[]", package)[0] for package in subject.packages or ("perdure", "apsw", "asyncpg")]
    versions = {name: importlib.metadata.version(name) for name in names if not name.startswith("pysqlite3")}
    if subject.is_peer and task.store == SQLITE:
        versions["SQLite"] = importlib.import_module("sqlite3").sqlite_version
    return versions


def _footprint() -> dict[str, float]:
    """Return the most memory this process held, and all that it passed to the operating system to write."""
    written = getattr(psutil.Process().io_counters(), "write_chars", 0) if sys.platform == "linux" else 0
    return {"peak_mib": _peak_mib(), "written_mib": written / 1024 / 1024}


def _peak_mib() -> float:
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 / 1024
    # What getrusage says may be the memory of the process that has started this one.
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
