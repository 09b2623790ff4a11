-- Names for places in the log: `seq` is the last event that belongs to one, `event_seq` the event that says so. Those that are saved
-- by themselves are numbered by `periodic`; of the others it is 0, and `asked_as` tells who asks again from who wants another one.

CREATE TABLE run_checkpoints (
    project_id text   COLLATE "C" NOT NULL,
    run_id     text   COLLATE "C" NOT NULL,
    name       text   COLLATE "C" NOT NULL,
    branch_id  bigint NOT NULL CHECK (branch_id >= 1),
    seq        bigint NOT NULL CHECK (seq >= 1),
    event_seq  bigint NOT NULL,
    periodic   bigint NOT NULL CHECK (periodic >= 0),
    asked_as   text   NOT NULL,
    saved_at   bigint NOT NULL,
    PRIMARY KEY (project_id, run_id, name),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state,
    CHECK (seq < event_seq)
);

CREATE UNIQUE INDEX run_checkpoints_by_seq ON run_checkpoints (project_id, run_id, event_seq);

ALTER TABLE run_checkpoints ALTER COLUMN project_id SET (n_distinct = 1);
