"""The command line: `perdure`. A module per group of commands, loaded when one of them is used."""

from __future__ import annotations

from perdure.cli.entry import main

__all__ = ["main"]
