-- Runs that have left the database for a file: where each one is in which file of the archive's folder, and what a list shows of
-- it. `is_removed` is 1: here all rows of a run go at once.

CREATE TABLE run_archives (
    project_id       text   COLLATE "C" NOT NULL,
    run_id           text   COLLATE "C" NOT NULL,
    workflow         text   COLLATE "C" NOT NULL,
    workflow_version bigint NOT NULL,
    status           text   COLLATE "C" NOT NULL CHECK (status IN ('completed', 'failed', 'cancelled')),
    created_at       bigint NOT NULL,
    ended_at         bigint NOT NULL,
    last_seq         bigint NOT NULL CHECK (last_seq >= 1),
    archived_at      bigint NOT NULL,
    file             text   COLLATE "C" NOT NULL,
    position         bigint NOT NULL CHECK (position >= 0),
    size             bigint NOT NULL CHECK (size >= 1),
    digest           text   COLLATE "C" NOT NULL,
    is_removed       bigint NOT NULL CHECK (is_removed IN (0, 1)),
    PRIMARY KEY (project_id, run_id)
);

CREATE INDEX run_archives_by_age ON run_archives (project_id, created_at, run_id);
CREATE INDEX run_archives_by_file ON run_archives (project_id, file);
CREATE INDEX run_archives_left ON run_archives (project_id, run_id) WHERE is_removed = 0;

ALTER TABLE run_archives ALTER COLUMN project_id SET (n_distinct = 1);

-- Runs whose values were deleted, as their logs tell.

CREATE TABLE run_deletions (
    project_id text   COLLATE "C" NOT NULL,
    run_id     text   COLLATE "C" NOT NULL,
    deleted_at bigint NOT NULL,
    PRIMARY KEY (project_id, run_id)
);

ALTER TABLE run_deletions ALTER COLUMN project_id SET (n_distinct = 1);

-- Words by which people find runs again. They are no part of a run's history.

CREATE TABLE run_tags (
    project_id text COLLATE "C" NOT NULL,
    run_id     text COLLATE "C" NOT NULL,
    tag        text COLLATE "C" NOT NULL,
    PRIMARY KEY (project_id, run_id, tag),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state
);

CREATE INDEX run_tags_by_tag ON run_tags (project_id, tag, run_id);

ALTER TABLE run_tags ALTER COLUMN project_id SET (n_distinct = 1);
