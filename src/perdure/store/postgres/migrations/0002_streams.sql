-- Entries of streams while they are in flight. A row holds `count` of them at consecutive positions, and is written once and
-- removed with the rest of its stream; its key is the deterministic id of what it holds. No CHECK and no reference, for the
-- reason that is given for the other tables that every step may write.

CREATE TABLE run_inbox_messages (
    project_id text   COLLATE "C" NOT NULL,
    run_id     text   COLLATE "C" NOT NULL,
    branch_id  bigint NOT NULL,
    node_id    text   COLLATE "C" NOT NULL,
    position   bigint NOT NULL,
    count      bigint NOT NULL,
    is_plain   bigint NOT NULL,
    seq        bigint NOT NULL,
    items      text   NOT NULL
);

CREATE INDEX run_inbox_messages_by_seq ON run_inbox_messages (project_id, run_id, branch_id, node_id, seq, position);

-- The last of the indexes, as for run_state.
ALTER TABLE run_inbox_messages ADD PRIMARY KEY (project_id, run_id, branch_id, node_id, position);

-- Not compressed, because they do not stay long: it took longer than all the rest of a commit of 64 KB.
ALTER TABLE run_inbox_messages ALTER COLUMN items SET STORAGE EXTERNAL;

-- How far a node that works item by item has come. Most nodes do not.

ALTER TABLE run_node_state ADD COLUMN stream text;

-- What is in flight, for people: a line for each row.

CREATE VIEW run_inbox AS
SELECT project_id, run_id || '/' || branch_id || '/' || node_id || '/' || position AS message_id, run_id, branch_id, node_id,
       position, count
  FROM run_inbox_messages;

-- As for the other tables. It needs no samples: what is looked up in it is looked up in one way only.

ALTER TABLE run_inbox_messages ALTER COLUMN project_id SET (n_distinct = 1);
