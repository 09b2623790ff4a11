"""SQL kept in files: each statement stands under `-- name: …` with a line that says why it exists."""

from __future__ import annotations

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load_queries(package: str) -> dict[str, str]:
    """Return the statements of the package's `queries.sql` by name."""
    text = files(package).joinpath("queries.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    return {name: _without_comments(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _without_comments(body: str) -> str:
    # The shorter a text, the sooner a statement that was prepared is found by it.
    lines = (line.strip() for line in body.splitlines() if not line.startswith("--"))
    return "\n".join(lines).strip().rstrip(";")
