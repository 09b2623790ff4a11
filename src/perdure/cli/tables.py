"""Tables for people: columns as wide as what is in them, titles above."""

from __future__ import annotations

from collections.abc import Sequence

import click

from perdure.cli.terminal import Paper
from perdure.cli.words import cells, padded


def print_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], sheet: Paper, *, right: Sequence[int] = ()
) -> None:
    """Print rows under their titles. The columns `right` are numbers."""
    lines = [titles, *rows]
    widths = [max(cells(line[column]) for line in lines) for column in range(len(titles))]
    for number, line in enumerate(lines):
        shown = (
            text.rjust(width) if column in right else padded(text, width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        text = "  ".join(shown).rstrip()
        click.echo(text if number else sheet.pen.faint(text))
