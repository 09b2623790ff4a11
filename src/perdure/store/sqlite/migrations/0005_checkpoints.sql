-- Names for places in the log: `seq` is the last event that belongs to one, `event_seq` the event that says so. Those that are saved
-- by themselves are numbered by `periodic`; of the others it is 0, and `asked_as` tells who asks again from who wants another one.

CREATE TABLE run_checkpoints (
    project_id TEXT    NOT NULL,
    run_id     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    branch_id  INTEGER NOT NULL CHECK (branch_id >= 1),
    seq        INTEGER NOT NULL CHECK (seq >= 1),
    event_seq  INTEGER NOT NULL,
    periodic   INTEGER NOT NULL CHECK (periodic >= 0),
    asked_as   TEXT    NOT NULL,
    saved_at   INTEGER NOT NULL,
    PRIMARY KEY (project_id, run_id, name),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state,
    CHECK (seq < event_seq)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX run_checkpoints_by_seq ON run_checkpoints (project_id, run_id, event_seq);
