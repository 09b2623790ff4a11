"""Starts or continues one small run, as a user's script would, and says its result."""

from __future__ import annotations

import sys

from tests.torture.programs import reporting
from tests.torture.programs.workloads import diamond


def main() -> None:
    store, run_id, number, millis = sys.argv[1:]
    reporting.prepare()
    result = diamond.options(store=store, run_id=run_id).run(number=int(number), millis=int(millis))
    reporting.say(said="result", result=result)


if __name__ == "__main__":
    main()
