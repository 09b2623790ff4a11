-- What nodes wait for, and what came of it. `result` is what the body is given; a question is JSON.

CREATE TABLE run_waits (
    project_id   text   COLLATE "C" NOT NULL,
    run_id       text   COLLATE "C" NOT NULL,
    branch_id    bigint NOT NULL CHECK (branch_id >= 1),
    wait_id      text   COLLATE "C" NOT NULL,
    node_id      text   COLLATE "C" NOT NULL,
    kind         text   COLLATE "C" NOT NULL CHECK (kind IN ('ask', 'sleep', 'signal', 'suspend')),
    name         text   COLLATE "C" NOT NULL,
    occurrence   bigint NOT NULL CHECK (occurrence >= 0),
    status       text   COLLATE "C" NOT NULL CHECK (status IN ('open', 'settled', 'past', 'withdrawn')),
    question     text,
    signal       text   COLLATE "C",
    signal_id    text   COLLATE "C",
    due          bigint,
    result       text,
    responded_by text   NOT NULL,
    opened_at    bigint NOT NULL,
    settled_at   bigint,
    last_seq     bigint NOT NULL CHECK (last_seq >= 1),
    CHECK (kind <> 'ask' OR question IS NOT NULL),
    CHECK (kind <> 'sleep' OR due IS NOT NULL),
    CHECK (kind <> 'signal' OR signal IS NOT NULL),
    CHECK (status <> 'settled' OR settled_at IS NOT NULL)
);

CREATE INDEX run_waits_by_id ON run_waits (project_id, wait_id);
CREATE INDEX run_waits_open ON run_waits (project_id, opened_at, wait_id) WHERE status = 'open';
-- Questions are few among all that sleeps.
CREATE INDEX run_waits_asked ON run_waits (project_id, opened_at, wait_id)
    WHERE status = 'open' AND kind IN ('ask', 'suspend');

-- The last of the indexes, as for run_state.
ALTER TABLE run_waits ADD PRIMARY KEY (project_id, run_id, branch_id, wait_id);

-- Statistics from the first moment, as for run_state: without them, a wait is looked for among all of its project. The samples belong
-- to no run, so that the table refers to runs only when they are gone.

ALTER TABLE run_waits ALTER COLUMN project_id SET (n_distinct = 1);

INSERT INTO run_waits (project_id, run_id, branch_id, wait_id, node_id, kind, name, occurrence, status, question, responded_by,
                       opened_at, last_seq)
SELECT 'default', md5(i::text), 1, md5(i::text) || '/1', 'sample', 'ask', 'sample', 0, 'open', '{}', '', i, i
  FROM generate_series(1, 40) AS i;

ANALYZE run_waits;

DELETE FROM run_waits;

ALTER TABLE run_waits ADD FOREIGN KEY (project_id, run_id) REFERENCES run_state;

-- Signals that have come, facts of the run. Which wait took one is told by the wait.

CREATE TABLE run_signals (
    project_id  text   COLLATE "C" NOT NULL,
    run_id      text   COLLATE "C" NOT NULL,
    signal_id   text   COLLATE "C" NOT NULL,
    name        text   COLLATE "C" NOT NULL,
    value       text   NOT NULL,
    received_at bigint NOT NULL,
    seq         bigint NOT NULL CHECK (seq >= 1),
    PRIMARY KEY (project_id, run_id, signal_id),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state
);

-- When time itself moves a run that rests, and whom it moves next. What moves a run that was paused: not the items that were sent to
-- it, of which there may be many. Building an index counts the rows of its table, and where that is empty would undo what was done
-- for its statistics: so there are samples again meanwhile.

ALTER TABLE run_state ADD COLUMN wake_at bigint;

INSERT INTO workflow_versions (project_id, workflow, version, graph_hash, graph, source, created_at)
SELECT 'default', 'sample-' || i, 1, 'sample', 'sample', '{}', i FROM generate_series(1, 40) AS i
ON CONFLICT DO NOTHING;

INSERT INTO run_state (project_id, run_id, workflow, workflow_version, graph_hash, status, branch_id, owner, lease_epoch, last_seq,
                       version, inputs, settings, source, reason, recoveries, created_at, started_at)
SELECT 'default', md5(i::text), 'sample-' || i, 1, md5(i::text), 'running', 1, 'sample', 1, i, i, '{}', 'sample', '{}', '', 0, i, i
  FROM generate_series(1, 40) AS i
ON CONFLICT DO NOTHING;

INSERT INTO run_commands (project_id, command_id, run_id, kind, payload, created_at)
SELECT 'default', md5(i::text), md5(i::text), 'cancel', 'sample', i FROM generate_series(1, 40) AS i
ON CONFLICT DO NOTHING;

CREATE INDEX run_state_sleeping ON run_state (project_id, wake_at, run_id)
    WHERE wake_at IS NOT NULL AND owner IS NULL AND status IN ('suspended', 'awaiting_input');
CREATE INDEX run_commands_urgent ON run_commands (project_id, run_id)
    WHERE taken_seq IS NULL AND kind NOT IN ('send', 'close');

ANALYZE run_state, run_commands;

DELETE FROM run_commands WHERE payload = 'sample';
DELETE FROM run_state WHERE settings = 'sample';
DELETE FROM workflow_versions WHERE graph = 'sample';

-- For people. PostgreSQL takes no text out of a document in which the NUL character occurs anywhere: such a prompt is not shown.

CREATE VIEW interactions AS
SELECT project_id, wait_id AS interaction_id, run_id, branch_id, node_id, kind,
       CASE WHEN strpos(question, '\u0000') = 0 THEN question::json->>'prompt' END AS prompt,
       CASE WHEN strpos(question, '\u0000') = 0 THEN coalesce(question::json->>'schema', '{}') END AS schema,
       status, result AS answer, responded_by, opened_at AS created_at, due, settled_at AS responded_at
  FROM run_waits
 WHERE kind IN ('ask', 'suspend');

CREATE VIEW timers AS
SELECT project_id, wait_id AS timer_id, run_id, branch_id, node_id, kind, due, status
  FROM run_waits
 WHERE due IS NOT NULL;

ALTER TABLE run_signals ALTER COLUMN project_id SET (n_distinct = 1);
