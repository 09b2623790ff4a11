"""The rows of a run, past the store."""

from __future__ import annotations

from typing import Any

import apsw
import asyncpg

TABLES = (
    *("run_state", "run_events", "run_node_state", "run_branches", "run_steps", "run_waits", "run_signals"),
    *("run_checkpoints", "run_inbox_messages", "run_commands", "blobs", "run_logs", "run_tags", "run_deletions"),
    "run_log_segments",
)


async def rows_of(url: str, run_id: str) -> dict[str, int]:
    """Return how many rows there are of a run, by table, where there are any."""
    counts: dict[str, int] = {}
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        for table in TABLES:
            counts[table] = connection.execute(f"SELECT count(*) FROM {table} WHERE run_id = ?", (run_id,)).get
        connection.close()
    else:
        raw: Any = await asyncpg.connect(url)
        for table in TABLES:
            counts[table] = await raw.fetchval(f"SELECT count(*) FROM {table} WHERE run_id = $1", run_id)
        await raw.close()
    return {table: count for table, count in counts.items() if count}
