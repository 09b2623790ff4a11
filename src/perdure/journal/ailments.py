"""The catalogue of the doctor: what can be wrong with a run as it is recorded, and what only looks wrong.

The codes A1 to F2 are those of the catalogue from which they come; G1, R1 and R2 are for what it does not name. None of them is
left behind by a crash of ours: a transition is one transaction. Restored backups, rows that somebody has edited, and logs from
elsewhere can be like that.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Ailment(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the catalogue."""

    code: str
    title: str
    is_issue: bool
    """Whether something is to be done about it."""
    explanation: str
    """How it comes about; of what is no issue, why it is none."""
    remedy: str


def _issue(code: str, title: str, explanation: str, remedy: str) -> Ailment:
    return Ailment(code=code, title=title, is_issue=True, explanation=explanation, remedy=remedy)


def _no_issue(code: str, title: str, explanation: str, remedy: str = "Nothing is to be done.") -> Ailment:
    return Ailment(code=code, title=title, is_issue=False, explanation=explanation, remedy=remedy)


CATALOGUE: Mapping[str, Ailment] = {
    ailment.code: ailment
    for ailment in (
        _issue(
            "A1",
            "recorded as waiting, and by the log nothing is waited for",
            "The question was answered, or its node has ended, and the status was not brought up to date.",
            "The run goes on on a branch that keeps everything: an answer that is there is given to the node that asked, and "
            "nothing that was completed runs again.",
        ),
        _issue(
            "A2",
            "recorded as running, and by the log it waits",
            "A node has asked, and the status was not brought up to date.",
            "The run goes on on a branch that keeps everything: the question stays open under its id, an answer to it counts, "
            "and the node goes on from there instead of running again.",
        ),
        _issue(
            "A3",
            "recorded as running, and by the log all its nodes are done",
            "The last node has ended, and the end of the run was not recorded, or the status was not brought up to date.",
            "On a branch it is computed again whether every node is completed or skipped and nothing is open; then the run is "
            "completed. No node runs again.",
        ),
        _issue(
            "A4",
            "recorded as running, and by the log a node has failed",
            "The failure of a node was recorded, and what follows from it for the run was not.",
            "On a branch, by the class of the error. Transient or for want of resources: the node is tried again, under the same "
            "key. Configuration or input: the run is quarantined until somebody has repaired it and resumes it, or goes back "
            "with other values. A bug: the run fails. Unknown: the node is in doubt, unless it is pure; then it is tried "
            "again. What must run at most once is in doubt instead of being tried again.",
        ),
        _no_issue(
            "B1",
            "a question is open",
            "A run waits for an answer as long as it takes. It holds no memory and no lease meanwhile.",
            "Answer it, or wait.",
        ),
        _no_issue(
            "B2",
            "a question has been open for long",
            "Nobody has to hurry: the run goes on whenever the answer comes. Who wants a limit gives the question a deadline.",
            "Answer it, cancel the run, or wait.",
        ),
        _no_issue(
            "C1",
            "a node has begun and has not ended",
            "Whoever takes the run up records the attempt as lost and makes the next one, from the node's last checkpoint, with "
            "its steps, items and answers. What must run at most once is in doubt then.",
            "Let an engine take the run up.",
        ),
        _no_issue(
            "C2",
            "a stage has begun and has not ended",
            "A stage is a label. It ends with its last node, whoever drives the run then.",
            "Let an engine take the run up.",
        ),
        _no_issue(
            "D1",
            "a branch was created, and the run never went on on it",
            "A run is always on the branch that was activated last. Another one is in nobody's lineage and changes nothing; "
            "its number is not given again.",
        ),
        _issue(
            "D2",
            "a jump was asked for, and the run is not on its branch",
            "The wish was recorded, and going on on the branch was not; or the run's row still names the branch before.",
            "If the log does not have the branch as activated, the run goes on on a branch that ends before the jump, and the "
            "jump is dropped and reported: ask for it again. If it has, the jump is kept, and only the row is put right.",
        ),
        _no_issue(
            "E1",
            "a run without a version",
            "A run cannot be stored without one: the database refuses it.",
        ),
        _issue(
            "E2",
            "the version of the run is not in the store",
            "Whoever edits or restores tables can lose it; perdure does not delete a version to which a run refers.",
            "The run goes on with the version that it follows by its log, if that is there; else with one that it has followed "
            "before, or was started with, if every node of which something is recorded is in it as it was. Else the "
            "run cannot go on until the version is back in the store.",
        ),
        _no_issue(
            "F1",
            "nobody drives a run that should move",
            "Whoever follows it reads the log, which is the same whoever writes it: the follower says that nobody drives the "
            "run, waits, and goes on after the last event it has seen as soon as an engine has taken the run up.",
            "Let an engine take the run up: every engine that has its code does, and `perdure resume` does.",
        ),
        _no_issue(
            "F2",
            "a run is driven, and nobody follows it",
            "Events are recorded whether or not anybody looks. Who comes later reads them from wherever they like.",
        ),
        _no_issue(
            "G1",
            "the log is written on the side, and may have gaps",
            "The run was started with journal='audit': its tables alone are what is recorded, and there is nothing to compare "
            "them with. `perdure verify` says whether they agree with each other.",
        ),
        _issue(
            "R1",
            "what is recorded is not what the log says",
            "Rows were edited, or come from another time than the log.",
            "The run goes on on a branch whose rows are made from the log.",
        ),
        _issue(
            "R2",
            "the log cannot be read",
            "Events are missing, doubled, or follow each other in a way that the law of states does not allow.",
            "There is nothing to go by. `perdure verify` says where it breaks; restore the run from a backup.",
        ),
    )
}
