"""What a session found, and how it is kept: one cell per subject, store and workload, beside the machine's limits."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.subjects import Subject
from bench.workloads import FASTEST_IS_LOWEST, WORKLOADS, Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The median of one subject's repetitions of one workload on one store."""

    subject: str
    is_peer: bool
    competes: bool
    durability: str
    store: str
    workload: str
    unit: str
    repetitions: int
    measurement: Measurement

    @property
    def value(self) -> float:
        return self.measurement.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    cells: tuple[Cell, ...]
    limits: Mapping[str, float]
    machine: Mapping[str, str] = field(default_factory=dict[str, str])

    def find(self, subject: str, workload: str, store: str) -> Cell | None:
        """Return the cell if it holds a figure."""
        for cell in self.cells:
            if (cell.subject, cell.workload, cell.store) == (subject, workload, store) and not cell.measurement.error:
                return cell
        return None

    def best_peer(self, workload: str, stores: Iterable[str]) -> Cell | None:
        """Return the fastest fully durable peer on these stores."""
        wanted = set(stores)
        peers = [
            cell
            for cell in self.cells
            if cell.is_peer and cell.competes and cell.workload == workload and cell.store in wanted
            if not cell.measurement.error
        ]
        pick = min if workload in FASTEST_IS_LOWEST else max
        return pick(peers, key=lambda cell: cell.value, default=None)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> Results:
        stored: dict[str, Any] = json.loads(path.read_text())
        cells = tuple(_cell_from(cell) for cell in stored["cells"])
        return cls(cells=cells, limits=stored["limits"], machine=stored["machine"])


def _cell_from(stored: dict[str, Any]) -> Cell:
    stored["measurement"] = Measurement(**stored["measurement"])
    return Cell(**stored)


def cell_for(subject: Subject, store: str, workload: str, measurement: Measurement, repetitions: int) -> Cell:
    return Cell(
        subject=subject.key,
        is_peer=subject.is_peer,
        competes=subject.competes,
        durability=subject.durability,
        store=store,
        workload=workload,
        unit=WORKLOADS[workload].unit,
        repetitions=repetitions,
        measurement=measurement,
    )


def describe_machine() -> dict[str, str]:
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
    }
