"""SQL kept in files: each statement stands under `-- name: …` with a line that says why it exists.

A part of a statement between the lines `-- not in other:` and `-- in both:` makes it two: the whole one, and one that is called
`other` and has no such part.
"""

from __future__ import annotations

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_LEFT_OUT = re.compile(r"^-- not in (\w+):\n.*?^-- in both:\n", re.MULTILINE | re.DOTALL)


def load_queries(package: str) -> dict[str, str]:
    """Return the statements of the package's `queries.sql` by name."""
    text = files(package).joinpath("queries.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    queries: dict[str, str] = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        queries[name] = _without_comments(body)
        for other in _LEFT_OUT.findall(body):
            queries[other] = _without_comments(_LEFT_OUT.sub("", body))
    return queries


def _without_comments(body: str) -> str:
    # The shorter a text, the sooner a statement that was prepared is found by it.
    lines = (line.strip() for line in body.splitlines() if not line.startswith("--"))
    return "\n".join(lines).strip().rstrip(";")
