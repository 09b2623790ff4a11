-- What nodes wait for, and what came of it. `result` is what the body is given; a question is JSON. Both may be long, which a table
-- without rowids is bad at.

CREATE TABLE run_waits (
    project_id   TEXT    NOT NULL,
    run_id       TEXT    NOT NULL,
    branch_id    INTEGER NOT NULL CHECK (branch_id >= 1),
    wait_id      TEXT    NOT NULL,
    node_id      TEXT    NOT NULL,
    kind         TEXT    NOT NULL CHECK (kind = 'ask' OR kind = 'sleep' OR kind = 'signal' OR kind = 'suspend'),
    name         TEXT    NOT NULL,
    occurrence   INTEGER NOT NULL CHECK (occurrence >= 0),
    status       TEXT    NOT NULL CHECK (status = 'open' OR status = 'settled' OR status = 'past' OR status = 'withdrawn'),
    question     TEXT,
    signal       TEXT,
    signal_id    TEXT,
    due          INTEGER,
    result       TEXT,
    responded_by TEXT    NOT NULL,
    opened_at    INTEGER NOT NULL,
    settled_at   INTEGER,
    last_seq     INTEGER NOT NULL CHECK (last_seq >= 1),
    PRIMARY KEY (project_id, run_id, branch_id, wait_id),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state,
    CHECK (kind <> 'ask' OR question IS NOT NULL),
    CHECK (kind <> 'sleep' OR due IS NOT NULL),
    CHECK (kind <> 'signal' OR signal IS NOT NULL),
    CHECK (status <> 'settled' OR settled_at IS NOT NULL)
) STRICT;

CREATE INDEX run_waits_by_id ON run_waits (project_id, wait_id);
CREATE INDEX run_waits_open ON run_waits (project_id, opened_at, wait_id) WHERE status = 'open';
-- Questions are few among all that sleeps.
CREATE INDEX run_waits_asked ON run_waits (project_id, opened_at, wait_id)
    WHERE status = 'open' AND kind IN ('ask', 'suspend');

-- Signals that have come, facts of the run. Which wait took one is told by the wait.

CREATE TABLE run_signals (
    project_id  TEXT    NOT NULL,
    run_id      TEXT    NOT NULL,
    signal_id   TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    value       TEXT    NOT NULL,
    received_at INTEGER NOT NULL,
    seq         INTEGER NOT NULL CHECK (seq >= 1),
    PRIMARY KEY (project_id, run_id, signal_id),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state
) STRICT;

-- When time itself moves a run that rests, and whom it moves next.

ALTER TABLE run_state ADD COLUMN wake_at INTEGER;

CREATE INDEX run_state_sleeping ON run_state (project_id, wake_at, run_id)
    WHERE wake_at IS NOT NULL AND owner IS NULL AND status IN ('suspended', 'awaiting_input');

-- What moves a run that was paused: not the items that were sent to it, of which there may be many.

CREATE INDEX run_commands_urgent ON run_commands (project_id, run_id)
    WHERE taken_seq IS NULL AND kind NOT IN ('send', 'close');

-- For people.

CREATE VIEW interactions AS
SELECT project_id, wait_id AS interaction_id, run_id, branch_id, node_id, kind, json_extract(question, '$.prompt') AS prompt,
       coalesce(json_extract(question, '$.schema'), '{}') AS schema, status, result AS answer, responded_by,
       opened_at AS created_at, due, settled_at AS responded_at
  FROM run_waits
 WHERE kind IN ('ask', 'suspend');

CREATE VIEW timers AS
SELECT project_id, wait_id AS timer_id, run_id, branch_id, node_id, kind, due, status
  FROM run_waits
 WHERE due IS NOT NULL;
