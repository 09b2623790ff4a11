"""Starts or continues one run of a web, as a user's script would, and says its result."""

from __future__ import annotations

import sys

from tests.torture.programs import reporting
from tests.torture.programs.workloads import Web


def main() -> None:
    store, run_id, seed, size = sys.argv[1:]
    reporting.prepare()
    web = Web(int(seed), size=int(size))
    reporting.say(said="result", result=web.workflow.options(store=store, run_id=run_id).run())


if __name__ == "__main__":
    main()
