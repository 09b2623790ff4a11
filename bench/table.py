"""Prints a session's results: `python -m bench.table results.json`. Rows are subjects, columns are workloads."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.results import Cell, Results
from bench.subjects import OWN, POSTGRES, SQLITE
from bench.targets import check
from bench.workloads import FASTEST_IS_LOWEST, WORKLOADS

STORE_TITLES = {
    SQLITE: "SQLite, WAL, synchronous=FULL",
    POSTGRES: "PostgreSQL, synchronous_commit=on, fsync=on",
    OWN: "Servers with their own storage",
}
UNITS = {"W4": "s (twice)", "W5": "starts/s · KB · ms"}
MARKS = {True: "pass", False: "FAIL", None: " -- "}


def render(results: Results) -> str:
    """Return the whole report as text."""
    workloads = [name for name in WORKLOADS if any(cell.workload == name for cell in results.cells)]
    parts = [", ".join(f"{key}: {value}" for key, value in results.machine.items()), ""]
    for store in STORE_TITLES:
        cells = [cell for cell in results.cells if cell.store == store]
        if cells:
            parts += [STORE_TITLES[store], *_grid(_rows(results, cells, workloads, store)), ""]
    parts += [
        "(row) does not compete: it may lose acknowledged steps when killed, or is not a setting of its own. "
        "- was not run, ✗ failed.",
        "",
    ]
    parts += ["Workloads", *(f"  {name}  {WORKLOADS[name].title}" for name in workloads), ""]
    parts += ["Limits of this machine, transitions per second, without any engine"]
    parts += [f"  {name:32} {value:>10,.0f}" for name, value in results.limits.items()]
    parts += ["", "What perdure must reach"]
    parts += [f"  {MARKS[v.passed]}  {v.requirement}: {v.found}" for v in check(results)]
    parts += ["", "Subjects", *_subjects(results)]
    parts += _section("Notes", _notes(results)) + _section("Not measured", _failures(results))
    return "\n".join(parts)


def last_line(text: str) -> str:
    """Return what a traceback or a log comes down to."""
    return text.strip().splitlines()[-1][:200] if text.strip() else ""


def _rows(results: Results, cells: Sequence[Cell], workloads: Sequence[str], store: str) -> Iterator[list[str]]:
    yield ["", *workloads]
    yield ["", *(UNITS.get(name, WORKLOADS[name].unit) for name in workloads)]
    for subject in dict.fromkeys(cell.subject for cell in cells):
        mine = {cell.workload: cell for cell in cells if cell.subject == subject}
        competes = next(iter(mine.values())).competes
        yield [subject if competes else f"({subject})", *(_figure(mine.get(name)) for name in workloads)]
    if store != OWN:
        yield ["perdure to best peer here", *(_ratio(results, name, store) for name in workloads)]


def _figure(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    if cell.measurement.error:
        return "✗"
    more = cell.measurement.more
    match cell.workload:
        case "W4":
            return f"{cell.value:.2f} ({more['repeated']:.0f})"
        case "W5":
            memory = f"{more['kb_per_run']:.2f}"
            memory += f"+{more['server_kb_per_run']:.0f}" if "server_kb_per_run" in more else ""
            return f"{cell.value:,.0f} · {memory} · {more['wake_ms']:.1f}"
        case _:
            return f"{cell.value:,.0f}"


def _ratio(results: Results, workload: str, store: str) -> str:
    ours, best = results.find("perdure", workload, store), results.best_peer(workload, (store,))
    if ours is None or best is None:
        return "-"
    ratio = best.value / ours.value if workload in FASTEST_IS_LOWEST else ours.value / best.value
    return f"{ratio:.2f}x"


def _grid(rows: Iterator[list[str]]) -> Iterator[str]:
    table = list(rows)
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for first, *rest in table:
        yield "  " + "  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])])


def _subjects(results: Results) -> Iterator[str]:
    for subject in dict.fromkeys(cell.subject for cell in results.cells):
        cells = [cell for cell in results.cells if cell.subject == subject]
        versions: dict[str, str] = {}
        for cell in cells:
            versions |= cell.measurement.versions
        named = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield f"  {subject}: {cells[0].durability}" + (f" [{named}]" if named else "")


def _notes(results: Results) -> list[str]:
    notes: dict[str, dict[str, None]] = {}
    for cell in results.cells:
        for note in filter(None, cell.measurement.notes.split("; ")):
            notes.setdefault(cell.subject, {})[f"{cell.workload} {note}"] = None
    return [f"  {subject}: {'; '.join(found)}" for subject, found in notes.items()]


def _failures(results: Results) -> list[str]:
    places: dict[tuple[str, str], list[str]] = {}
    for cell in results.cells:
        if cell.measurement.error:
            reason = last_line(cell.measurement.error)
            places.setdefault((cell.subject, reason), []).append(f"{cell.workload} {cell.store}")
    return [f"  {subject} ({', '.join(where)}): {reason}" for (subject, reason), where in places.items()]


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", title, *lines] if lines else []


if __name__ == "__main__":
    print(render(Results.load(Path(sys.argv[1]))))
