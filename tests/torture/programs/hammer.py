"""Writes to a SQLite file without pause, as a busy engine does at its worst, until it is killed."""

from __future__ import annotations

import sys

import apsw

from tests.torture.programs import reporting


def main() -> None:
    reporting.prepare()
    connection = apsw.Connection(sys.argv[1])
    connection.set_busy_timeout(60_000)
    connection.execute("PRAGMA synchronous = FULL; CREATE TABLE hammered (number INTEGER)")
    reporting.say(said="ready", engine_id="")
    while True:
        connection.execute("BEGIN IMMEDIATE; INSERT INTO hammered VALUES (1); COMMIT")


if __name__ == "__main__":
    main()
