-- Runs that have left the database for a file: where each one is in which file of the archive's folder, and what a list shows of
-- it. While `is_removed` is 0, rows of a large run may still be there, without the run itself.

CREATE TABLE run_archives (
    project_id       TEXT    NOT NULL,
    run_id           TEXT    NOT NULL,
    workflow         TEXT    NOT NULL,
    workflow_version INTEGER NOT NULL,
    status           TEXT    NOT NULL CHECK (status IN ('completed', 'failed', 'cancelled')),
    created_at       INTEGER NOT NULL,
    ended_at         INTEGER NOT NULL,
    last_seq         INTEGER NOT NULL CHECK (last_seq >= 1),
    archived_at      INTEGER NOT NULL,
    file             TEXT    NOT NULL,
    position         INTEGER NOT NULL CHECK (position >= 0),
    size             INTEGER NOT NULL CHECK (size >= 1),
    digest           TEXT    NOT NULL,
    is_removed       INTEGER NOT NULL CHECK (is_removed IN (0, 1)),
    PRIMARY KEY (project_id, run_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX run_archives_by_age ON run_archives (project_id, created_at, run_id);
CREATE INDEX run_archives_by_file ON run_archives (project_id, file);
CREATE INDEX run_archives_left ON run_archives (project_id, run_id) WHERE is_removed = 0;

-- Runs whose values were deleted, as their logs tell.

CREATE TABLE run_deletions (
    project_id TEXT    NOT NULL,
    run_id     TEXT    NOT NULL,
    deleted_at INTEGER NOT NULL,
    PRIMARY KEY (project_id, run_id)
) STRICT, WITHOUT ROWID;

-- Words by which people find runs again. They are no part of a run's history.

CREATE TABLE run_tags (
    project_id TEXT NOT NULL,
    run_id     TEXT NOT NULL,
    tag        TEXT NOT NULL,
    PRIMARY KEY (project_id, run_id, tag),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state
) STRICT, WITHOUT ROWID;

CREATE INDEX run_tags_by_tag ON run_tags (project_id, tag, run_id);
