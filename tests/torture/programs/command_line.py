"""The command line, with the torture tests' own way of ending: it dies with its test."""

from __future__ import annotations

import sys

from perdure.cli import main
from tests.torture.programs import reporting

if __name__ == "__main__":
    reporting.prepare()
    sys.exit(main())
