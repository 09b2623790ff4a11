"""Fingerprints of all files of a folder, computed in several processes: to tell later whether anything has changed.

perdure run examples/fingerprints.py --input folder=docs

The files are dealt out to four nodes. Each saves after every file how far it is, so that one that is killed goes on with the
next file.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from perdure import SyncContext, node, workflow

PARTS = 4


@node
def deal(folder: str) -> list[list[str]]:
    """Say which part gets which files. Stored, so that all attempts at a part have the same ones."""
    files = sorted(str(path) for path in Path(folder).rglob("*") if path.is_file())
    return [files[part::PARTS] for part in range(PARTS)]


@node(executor="process", retries=2)
def fingerprint(ctx: SyncContext, files: list[str]) -> dict[str, str]:
    found: dict[str, str] = ctx.restored or {}
    for file in files:
        if file not in found:
            with open(file, "rb") as content:
                found[file] = hashlib.file_digest(content, "sha256").hexdigest()
            ctx.checkpoint(found)
        ctx.progress(len(found), len(files))
    return found


@node
def combine(parts: list[dict[str, str]]) -> dict[str, str | int]:
    found = {file: digest for part in parts for file, digest in part.items()}
    lines = "".join(f"{digest}  {file}\n" for file, digest in sorted(found.items()))
    return {"files": len(found), "fingerprint": hashlib.sha256(lines.encode()).hexdigest()}


@workflow
def fingerprints(folder: str = ".") -> dict[str, str | int]:
    dealt = deal(folder)
    return combine([fingerprint(dealt[part]) for part in range(PARTS)])


if __name__ == "__main__":
    print(fingerprints.run())
