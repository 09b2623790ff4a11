-- Texts that identify something compare byte by byte (COLLATE "C"), as they do in SQLite, whatever the database's locale.
-- JSON is kept as text, byte for byte as it was written.

-- Workflows and their immutable versions.

CREATE TABLE workflow_versions (
    project_id  text   COLLATE "C" NOT NULL,
    workflow    text   COLLATE "C" NOT NULL,
    version     bigint NOT NULL CHECK (version >= 1),
    graph_hash  text   COLLATE "C" NOT NULL,
    graph       text   NOT NULL,
    source      text   NOT NULL,
    created_at  bigint NOT NULL,
    PRIMARY KEY (project_id, workflow, version),
    UNIQUE (project_id, workflow, graph_hash)
);

CREATE VIEW workflows AS
SELECT project_id, workflow AS name, max(version) AS latest_version, min(created_at) AS created_at
  FROM workflow_versions
 GROUP BY project_id, workflow;

-- Engines: one row and one heartbeat per process. Expiry is judged by this database's clock.

CREATE TABLE engines (
    engine_id      text        COLLATE "C" NOT NULL PRIMARY KEY,
    name           text        NOT NULL,
    host           text        NOT NULL,
    pid            bigint      NOT NULL,
    process_start  text        NOT NULL,
    expires_at     timestamptz NOT NULL
);

CREATE INDEX engines_by_expiry ON engines (expires_at);

-- Runs. `lease_epoch` fences older owners out; `version` counts writes. Half of each page stays free, so that all rows of one
-- may change in a group: a row that stays on its page needs no new entries in indexes, which saves more room than it takes.
--
-- The tables that every step writes (run_state, run_node_state, run_events) have no CHECK and do not refer to each other:
-- PostgreSQL prepares each such rule afresh in every statement, which made a commit a third slower. Their rows come out of
-- the fencing statement itself, are bound by the law in `journal/states.py`, and `perdure verify` asks for all of it.

CREATE TABLE run_state (
    project_id        text   COLLATE "C" NOT NULL,
    run_id            text   COLLATE "C" NOT NULL,
    workflow          text   COLLATE "C" NOT NULL,
    workflow_version  bigint NOT NULL,
    graph_hash        text   COLLATE "C" NOT NULL,
    status            text   COLLATE "C" NOT NULL,
    branch_id         bigint NOT NULL,
    owner             text   COLLATE "C",
    lease_epoch       bigint NOT NULL,
    last_seq          bigint NOT NULL,
    version           bigint NOT NULL,
    inputs            text   NOT NULL,
    settings          text   NOT NULL,
    source            text   NOT NULL,
    outputs           text,
    error             text,
    failed_node       text,
    reason            text   NOT NULL,
    recoveries        bigint NOT NULL,
    created_at        bigint NOT NULL,
    started_at        bigint,
    ended_at          bigint,
    FOREIGN KEY (project_id, workflow, workflow_version) REFERENCES workflow_versions
) WITH (fillfactor = 50);

CREATE INDEX run_state_by_age ON run_state (project_id, created_at, run_id);
CREATE INDEX run_state_by_workflow ON run_state (project_id, workflow, created_at, run_id);
CREATE INDEX run_state_by_version ON run_state (project_id, workflow, workflow_version);
CREATE INDEX run_state_by_status ON run_state (project_id, status, created_at, run_id);
CREATE INDEX run_state_owned ON run_state (owner) WHERE owner IS NOT NULL;
CREATE INDEX run_state_moving ON run_state (project_id, created_at, run_id)
    WHERE status IN ('created', 'running', 'pausing', 'recovering', 'failing', 'cancelling');

-- The last of the indexes, because of several that look equally good the planner takes the youngest.
ALTER TABLE run_state ADD PRIMARY KEY (project_id, run_id);

CREATE TABLE run_branches (
    project_id  text   COLLATE "C" NOT NULL,
    run_id      text   COLLATE "C" NOT NULL,
    branch_id   bigint NOT NULL,
    parent_id   bigint,
    cut_seq     bigint,
    dropped     text   NOT NULL,
    created_seq bigint NOT NULL,
    PRIMARY KEY (project_id, run_id, branch_id),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state,
    CHECK ((parent_id IS NULL) = (cut_seq IS NULL))
);

-- Nodes, as their events add up to them.

CREATE TABLE run_node_state (
    project_id    text   COLLATE "C" NOT NULL,
    run_id        text   COLLATE "C" NOT NULL,
    branch_id     bigint NOT NULL,
    node_id       text   COLLATE "C" NOT NULL,
    status        text   COLLATE "C" NOT NULL,
    attempt       bigint NOT NULL,
    attempt_ended bigint NOT NULL,
    generation    bigint NOT NULL,
    failures      bigint NOT NULL,
    lost          bigint NOT NULL,
    outputs       text,
    error         text,
    checkpoint    text,
    reason        text   NOT NULL,
    due           bigint,
    scheduled_at  bigint,
    started_at    bigint,
    ended_at      bigint,
    duration_ms   bigint,
    last_seq      bigint NOT NULL,
    PRIMARY KEY (project_id, run_id, branch_id, node_id)
) WITH (fillfactor = 50);

-- The log. The fence gives every place in it to one event; `id` tells which event has it.

CREATE TABLE run_events (
    project_id text   COLLATE "C" NOT NULL,
    run_id     text   COLLATE "C" NOT NULL,
    seq        bigint NOT NULL,
    id         text   COLLATE "C" NOT NULL,
    branch_id  bigint NOT NULL,
    epoch      bigint NOT NULL,
    event_type text   COLLATE "C" NOT NULL,
    event_time bigint NOT NULL, -- microseconds since 1970-01-01 UTC
    node_id    text   COLLATE "C",
    payload    text   NOT NULL,
    PRIMARY KEY (project_id, run_id, seq)
);

-- Results of memoised steps.

CREATE TABLE run_steps (
    project_id text   COLLATE "C" NOT NULL,
    run_id     text   COLLATE "C" NOT NULL,
    branch_id  bigint NOT NULL,
    node_id    text   COLLATE "C" NOT NULL,
    name       text   COLLATE "C" NOT NULL,
    occurrence bigint NOT NULL,
    result     text   NOT NULL,
    seq        bigint NOT NULL,
    PRIMARY KEY (project_id, run_id, branch_id, node_id, name, occurrence),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state
);

-- Wishes from outside, taken up by the run's owner.

CREATE TABLE run_commands (
    project_id text   COLLATE "C" NOT NULL,
    run_id     text   COLLATE "C" NOT NULL,
    command_id text   COLLATE "C" NOT NULL,
    kind       text   NOT NULL,
    payload    text   NOT NULL,
    created_at bigint NOT NULL,
    taken_seq  bigint,
    PRIMARY KEY (project_id, run_id, command_id),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state
);

CREATE INDEX run_commands_untaken ON run_commands (project_id, run_id, created_at) WHERE taken_seq IS NULL;

-- Which runs refer to which blobs.

CREATE TABLE blobs (
    project_id text   COLLATE "C" NOT NULL,
    digest     text   COLLATE "C" NOT NULL,
    run_id     text   COLLATE "C" NOT NULL,
    size       bigint NOT NULL,
    PRIMARY KEY (project_id, digest, run_id),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state
);

CREATE INDEX blobs_by_run ON blobs (project_id, run_id);

-- What bodies wrote with ctx.log. Best effort.

CREATE TABLE run_logs (
    log_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id text   COLLATE "C" NOT NULL,
    run_id     text   COLLATE "C" NOT NULL,
    branch_id  bigint NOT NULL,
    node_id    text   COLLATE "C" NOT NULL,
    attempt    bigint NOT NULL,
    logged_at  bigint NOT NULL,
    level      text   NOT NULL,
    message    text   NOT NULL,
    fields     text   NOT NULL
);

CREATE INDEX run_logs_by_run ON run_logs (project_id, run_id, log_id);

-- The run in one row, and who drives it.

CREATE VIEW run_projections AS
SELECT r.project_id, r.run_id, r.status, r.last_seq AS last_event_seq, r.created_at,
       coalesce(r.ended_at, r.started_at, r.created_at) AS updated_at,
       (SELECT coalesce(json_object_agg(n.node_id, json_build_object(
                   'status', n.status, 'attempt', n.attempt, 'started_at', n.started_at,
                   'completed_at', n.ended_at, 'outputs', n.outputs::json)), '{}')
          FROM run_node_state AS n
         WHERE n.project_id = r.project_id AND n.run_id = r.run_id AND n.branch_id = r.branch_id) AS node_states
  FROM run_state AS r;

CREATE VIEW run_leases AS
SELECT r.project_id, r.run_id, r.owner AS worker_id, r.lease_epoch, e.expires_at
  FROM run_state AS r JOIN engines AS e ON e.engine_id = r.owner;

-- Statistics from the first moment. Nearly every row has the same project_id, but in a table that was never analysed, or only
-- while it was tiny, the planner takes an equality for a rare match. It then plans to read all runs of a project for each foreign
-- key it checks, and keeps that plan while the table grows. So it is told, for every analysis to come; and a few rows that look
-- like real ones, analysed and removed again, are the first.

ALTER TABLE workflow_versions ALTER COLUMN project_id SET (n_distinct = 1);
ALTER TABLE run_state ALTER COLUMN project_id SET (n_distinct = 1);
ALTER TABLE run_branches ALTER COLUMN project_id SET (n_distinct = 1);
ALTER TABLE run_node_state ALTER COLUMN project_id SET (n_distinct = 1);
ALTER TABLE run_events ALTER COLUMN project_id SET (n_distinct = 1);
ALTER TABLE run_steps ALTER COLUMN project_id SET (n_distinct = 1);
ALTER TABLE run_commands ALTER COLUMN project_id SET (n_distinct = 1);
ALTER TABLE blobs ALTER COLUMN project_id SET (n_distinct = 1);
ALTER TABLE run_logs ALTER COLUMN project_id SET (n_distinct = 1);

INSERT INTO workflow_versions (project_id, workflow, version, graph_hash, graph, source, created_at)
SELECT 'default', 'sample-' || i, 1, md5(i::text), '{}', '{}', i FROM generate_series(1, 40) AS i;

INSERT INTO run_state (project_id, run_id, workflow, workflow_version, graph_hash, status, branch_id, owner, lease_epoch, last_seq,
                       version, inputs, settings, source, reason, recoveries, created_at, started_at)
SELECT 'default', md5(i::text), 'sample-' || i, 1, md5(i::text), 'running', 1, 'sample', 1, i, i, '{}', '{}', '{}', '', 0, i, i
  FROM generate_series(1, 40) AS i;

INSERT INTO run_commands (project_id, command_id, run_id, kind, payload, created_at)
SELECT 'default', md5(i::text), md5(i::text), 'cancel', '{}', i FROM generate_series(1, 40) AS i;

ANALYZE workflow_versions, run_state, run_commands;

DELETE FROM run_commands;
DELETE FROM run_state;
DELETE FROM workflow_versions;
