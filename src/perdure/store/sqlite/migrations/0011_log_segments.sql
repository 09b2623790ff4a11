-- The older part of long logs, many events to a row and compressed. An event is either here or in run_events, never in both, and
-- every event of a segment is older than every row of its run in run_events.

CREATE TABLE run_log_segments (
    project_id  TEXT    NOT NULL,
    run_id      TEXT    NOT NULL,
    last_seq    INTEGER NOT NULL,
    first_seq   INTEGER NOT NULL,
    first_epoch INTEGER NOT NULL,
    last_epoch  INTEGER NOT NULL,
    first_time  INTEGER NOT NULL, -- the earliest and the latest of its events, in microseconds since 1970-01-01 UTC
    last_time   INTEGER NOT NULL,
    reopens     INTEGER NOT NULL CHECK (reopens IN (0, 1)), -- whether RunReopened or BranchCreated is among them
    events      BLOB    NOT NULL,
    PRIMARY KEY (project_id, run_id, last_seq),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state,
    CHECK (1 <= first_seq AND first_seq <= last_seq)
) STRICT;
