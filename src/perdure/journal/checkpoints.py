"""Checkpoints: names for places in the log of a run.

Every commit leaves a run that can go on from there, so there is nothing to save but a name. A checkpoint holds all that was
recorded before it. Its name belongs to the run, whichever branch that is on, and stays where it is: a name that means one place
can be gone back to without asking which one was meant.
"""

from __future__ import annotations

from perdure.ids import is_text
from perdure.journal import events as e
from perdure.journal.standing import Standing
from perdure.journal.states import TERMINAL, CheckpointState

PERIODIC = "periodic-"
"""How the names begin of checkpoints that are saved by themselves. Nobody else can take such a name."""
LONGEST_NAME = 200


def periodic_name(number: int) -> str:
    """Return the name of the checkpoint that is the so-and-so-many-th of those that are saved by themselves, from 1."""
    return f"{PERIODIC}{number}"


def name_problem(name: object) -> str | None:
    """Return why something cannot be the name of a checkpoint that somebody asks for; None if it can."""
    if not isinstance(name, str):
        return f"a checkpoint is named by a text, and {name!r} is none"
    if not name.strip():
        return "a checkpoint needs a name"
    if len(name) > LONGEST_NAME:
        return f"the name of a checkpoint has at most {LONGEST_NAME} characters, and this one has {len(name)}"
    if name != name.strip() or not is_text(name) or not name.isprintable():
        return f"{name!r} is no name for a checkpoint: it has spaces around it, or characters that cannot be shown"
    if name.startswith(PERIODIC):
        return f"names that begin with {PERIODIC!r} are kept for checkpoints that are saved by themselves"
    return None


class Checkpointing(Standing):
    """The decisions that have to do with checkpoints."""

    def save_checkpoint(self, name: str, *, at: int, asked_as: str = "", periodic: int = 0) -> None:
        """Give the place where the run is a name, which must be free."""
        seq = self.projection.run.last_seq
        self._record(e.CheckpointSaved(name=name, seq=seq, periodic=periodic, asked_as=asked_as), at)
        run = self.projection.run
        self.saved_seq = run.last_seq
        self._saved.append(
            CheckpointState(
                name=name,
                branch_id=run.branch_id,
                seq=seq,
                event_seq=run.last_seq,
                periodic=periodic,
                asked_as=asked_as,
                saved_at=at,
            )
        )

    def save_periodic(self, *, at: int) -> bool:
        """Save a checkpoint under the next name of those that are saved by themselves, if something was recorded since the last
        one, whoever asked for that. False if nothing was, or if the run has ended."""
        run = self.projection.run
        if run.last_seq <= self.saved_seq or run.status in TERMINAL:
            return False
        self.periodic += 1
        self.save_checkpoint(periodic_name(self.periodic), at=at, periodic=self.periodic)
        return True
