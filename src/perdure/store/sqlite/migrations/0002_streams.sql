-- Entries of streams while they are in flight. A row holds `count` of them at consecutive positions, and is written once and
-- removed with the rest of its stream; its key is the deterministic id of what it holds. `items` comes last, so that what is
-- asked about rows without it does not read through it. Rows are long, which a table without rowids is bad at: reading from
-- one took twice as long, in the order in which they were recorded thrice.

CREATE TABLE run_inbox_messages (
    project_id TEXT    NOT NULL,
    run_id     TEXT    NOT NULL,
    branch_id  INTEGER NOT NULL CHECK (branch_id >= 1),
    node_id    TEXT    NOT NULL,
    position   INTEGER NOT NULL CHECK (position >= 0),
    count      INTEGER NOT NULL CHECK (count >= 1),
    is_plain   INTEGER NOT NULL CHECK (is_plain = 1 OR is_plain = 0),
    seq        INTEGER NOT NULL CHECK (seq >= 1),
    items      TEXT    NOT NULL,
    PRIMARY KEY (project_id, run_id, branch_id, node_id, position),
    FOREIGN KEY (project_id, run_id) REFERENCES run_state
) STRICT;

CREATE INDEX run_inbox_messages_by_seq ON run_inbox_messages (project_id, run_id, branch_id, node_id, seq, position);

-- How far a node that works item by item has come. Most nodes do not.

ALTER TABLE run_node_state ADD COLUMN stream TEXT;

-- What is in flight, for people: a line for each row.

CREATE VIEW run_inbox AS
SELECT project_id, run_id || '/' || branch_id || '/' || node_id || '/' || position AS message_id, run_id, branch_id, node_id,
       position, count
  FROM run_inbox_messages;
