-- Workflows and their immutable versions.

CREATE TABLE workflow_versions (
    project_id  TEXT    NOT NULL,
    workflow    TEXT    NOT NULL,
    version     INTEGER NOT NULL CHECK (version >= 1),
    graph_hash  TEXT    NOT NULL,
    graph       TEXT    NOT NULL,
    source      TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (project_id, workflow, version),
    UNIQUE (project_id, workflow, graph_hash)
) STRICT;

CREATE VIEW workflows AS
SELECT project_id, workflow AS name, max(version) AS latest_version, min(created_at) AS created_at
  FROM workflow_versions
 GROUP BY project_id, workflow;

-- Engines: one row and one heartbeat per process.

CREATE TABLE engines (
    engine_id      TEXT    NOT NULL PRIMARY KEY,
    name           TEXT    NOT NULL,
    host           TEXT    NOT NULL,
    pid            INTEGER NOT NULL,
    process_start  TEXT    NOT NULL,
    boot_id        TEXT    NOT NULL,
    expires_at     REAL    NOT NULL -- seconds on the host's boot clock
) STRICT;

-- Runs. `lease_epoch` fences older owners out; `version` counts writes.
--
-- Which statuses there are is spelled out with OR, the frequent ones first: for a list of more than two, SQLite builds a table
-- of it each time that a row is checked, which made up half of what writing a node cost.

CREATE TABLE run_state (
    project_id        TEXT    NOT NULL,
    run_id            TEXT    NOT NULL,
    workflow          TEXT    NOT NULL,
    workflow_version  INTEGER NOT NULL,
    graph_hash        TEXT    NOT NULL,
    status            TEXT    NOT NULL CHECK (status = 'running' OR status = 'completed' OR status = 'created'
                          OR status = 'failing' OR status = 'failed' OR status = 'cancelling' OR status = 'cancelled'
                          OR status = 'pausing' OR status = 'paused' OR status = 'suspended' OR status = 'awaiting_input'
                          OR status = 'recovering' OR status = 'quarantined'),
    branch_id         INTEGER NOT NULL CHECK (branch_id >= 1),
    owner             TEXT,
    lease_epoch       INTEGER NOT NULL CHECK (lease_epoch >= 0),
    last_seq          INTEGER NOT NULL CHECK (last_seq >= 1),
    version           INTEGER NOT NULL,
    inputs            TEXT    NOT NULL,
    settings          TEXT    NOT NULL,
    source            TEXT    NOT NULL,
    outputs           TEXT,
    error             TEXT,
    failed_node       TEXT,
    reason            TEXT    NOT NULL,
    recoveries        INTEGER NOT NULL CHECK (recoveries >= 0),
    created_at        INTEGER NOT NULL,
    started_at        INTEGER,
    ended_at          INTEGER,
    PRIMARY KEY (project_id, run_id),
    FOREIGN KEY (project_id, workflow, workflow_version) REFERENCES workflow_versions,
    CHECK ((status = 'completed' OR status = 'failed' OR status = 'cancelled') = (ended_at IS NOT NULL)),
    CHECK (status <> 'completed' OR outputs IS NOT NULL),
    CHECK (status <> 'failed' OR error IS NOT NULL)
) STRICT;

CREATE INDEX run_state_by_age ON run_state (project_id, created_at, run_id);
CREATE INDEX run_state_by_workflow ON run_state (project_id, workflow, created_at, run_id);
CREATE INDEX run_state_by_version ON run_state (project_id, workflow, workflow_version);
CREATE INDEX run_state_by_status ON run_state (project_id, status, created_at, run_id);
CREATE INDEX run_state_owned ON run_state (owner) WHERE owner IS NOT NULL;
CREATE INDEX run_state_moving ON run_state (project_id, created_at, run_id)
    WHERE status IN ('created', 'running', 'pausing', 'recovering', 'failing', 'cancelling');

CREATE TABLE run_branches (
    project_id  TEXT    NOT NULL,
    run_id      TEXT    NOT NULL,
    branch_id   INTEGER NOT NULL,
    parent_id   INTEGER,
    cut_seq     INTEGER,
    dropped     TEXT    NOT NULL,
    created_seq INTEGER NOT NULL,
    PRIMARY KEY (project_id, run_id, branch_id),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state,
    CHECK ((parent_id IS NULL) = (cut_seq IS NULL))
) STRICT, WITHOUT ROWID;

-- Nodes, as their events add up to them.

CREATE TABLE run_node_state (
    project_id    TEXT    NOT NULL,
    run_id        TEXT    NOT NULL,
    branch_id     INTEGER NOT NULL,
    node_id       TEXT    NOT NULL,
    status        TEXT    NOT NULL CHECK (status = 'running' OR status = 'completed' OR status = 'scheduled'
                      OR status = 'skipped' OR status = 'failed' OR status = 'cancelled' OR status = 'idle'
                      OR status = 'suspended' OR status = 'in_doubt'),
    attempt       INTEGER NOT NULL CHECK (attempt >= 0),
    attempt_ended INTEGER NOT NULL CHECK (attempt_ended IN (0, 1)),
    generation    INTEGER NOT NULL CHECK (generation >= 1),
    failures      INTEGER NOT NULL,
    lost          INTEGER NOT NULL,
    outputs       TEXT,
    error         TEXT,
    checkpoint    TEXT,
    reason        TEXT    NOT NULL,
    due           INTEGER,
    scheduled_at  INTEGER,
    started_at    INTEGER,
    ended_at      INTEGER,
    duration_ms   INTEGER,
    last_seq      INTEGER NOT NULL,
    PRIMARY KEY (project_id, run_id, branch_id, node_id),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state,
    CHECK (status <> 'completed' OR outputs IS NOT NULL)
) STRICT, WITHOUT ROWID;

-- The log. The fence gives every place in it to one event; `id` tells which event has it.

CREATE TABLE run_events (
    project_id TEXT    NOT NULL,
    run_id     TEXT    NOT NULL,
    seq        INTEGER NOT NULL CHECK (seq >= 1),
    id         TEXT    NOT NULL,
    branch_id  INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    event_type TEXT    NOT NULL,
    event_time INTEGER NOT NULL, -- microseconds since 1970-01-01 UTC
    node_id    TEXT,
    payload    TEXT    NOT NULL,
    PRIMARY KEY (project_id, run_id, seq),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state
) STRICT, WITHOUT ROWID;

-- Results of memoised steps.

CREATE TABLE run_steps (
    project_id TEXT    NOT NULL,
    run_id     TEXT    NOT NULL,
    branch_id  INTEGER NOT NULL,
    node_id    TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    occurrence INTEGER NOT NULL,
    result     TEXT    NOT NULL,
    seq        INTEGER NOT NULL,
    PRIMARY KEY (project_id, run_id, branch_id, node_id, name, occurrence),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state
) STRICT, WITHOUT ROWID;

-- Wishes from outside, taken up by the run's owner.

CREATE TABLE run_commands (
    project_id TEXT    NOT NULL,
    run_id     TEXT    NOT NULL,
    command_id TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    payload    TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    taken_seq  INTEGER,
    PRIMARY KEY (project_id, run_id, command_id),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state
) STRICT;

CREATE INDEX run_commands_untaken ON run_commands (project_id, run_id, created_at) WHERE taken_seq IS NULL;

-- Which runs refer to which blobs.

CREATE TABLE blobs (
    project_id TEXT    NOT NULL,
    digest     TEXT    NOT NULL,
    run_id     TEXT    NOT NULL,
    size       INTEGER NOT NULL,
    PRIMARY KEY (project_id, digest, run_id),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state
) STRICT, WITHOUT ROWID;

CREATE INDEX blobs_by_run ON blobs (project_id, run_id);

-- What bodies wrote with ctx.log. Best effort.

CREATE TABLE run_logs (
    log_id     INTEGER PRIMARY KEY,
    project_id TEXT    NOT NULL,
    run_id     TEXT    NOT NULL,
    branch_id  INTEGER NOT NULL,
    node_id    TEXT    NOT NULL,
    attempt    INTEGER NOT NULL,
    logged_at  INTEGER NOT NULL,
    level      TEXT    NOT NULL,
    message    TEXT    NOT NULL,
    fields     TEXT    NOT NULL
) STRICT;

CREATE INDEX run_logs_by_run ON run_logs (project_id, run_id, log_id);

-- The run in one row, and who drives it.

CREATE VIEW run_projections AS
SELECT r.project_id, r.run_id, r.status, r.last_seq AS last_event_seq, r.created_at,
       coalesce(r.ended_at, r.started_at, r.created_at) AS updated_at,
       (SELECT json_group_object(n.node_id, json_object(
                   'status', n.status, 'attempt', n.attempt, 'started_at', n.started_at,
                   'completed_at', n.ended_at, 'outputs', json(n.outputs)))
          FROM run_node_state AS n
         WHERE n.project_id = r.project_id AND n.run_id = r.run_id AND n.branch_id = r.branch_id) AS node_states
  FROM run_state AS r;

CREATE VIEW run_leases AS
SELECT r.project_id, r.run_id, r.owner AS worker_id, r.lease_epoch, e.boot_id, e.expires_at
  FROM run_state AS r JOIN engines AS e ON e.engine_id = r.owner;
