-- Rows travel as JSON: a list of lists, one per row, in the order in which `rows.py` names the columns. It costs the program a
-- fifth of what encoding one array per column costs, and the server hardly more. Values that are JSON themselves are texts in it.

-- name: step_run
-- The commit of one transition that changes nothing about its run but how far its log goes: what nearly every step of a lone run
-- is. Fence, lock and number at once, only where epoch and last_seq are still what the engine saw; all else is written from the
-- row that this has moved. `$6` events, `$7` nodes.
WITH moved AS (
    UPDATE run_state SET last_seq = $5, version = version + 1
     WHERE project_id = $1 AND run_id = $2 AND lease_epoch = $3 AND last_seq = $4
    RETURNING run_id
), appended AS (
    INSERT INTO run_events (project_id, run_id, seq, id, branch_id, epoch, event_type, event_time, node_id, payload)
    SELECT $1, moved.run_id, (e->>1)::bigint, e->>2, (e->>3)::bigint, (e->>4)::bigint, e->>5, (e->>6)::bigint, e->>7, e->>8
      FROM moved, jsonb_array_elements($6::jsonb) AS e
), put AS (
    INSERT INTO run_node_state (project_id, run_id, branch_id, node_id, status, attempt, attempt_ended, generation, failures, lost,
                                outputs, error, checkpoint, reason, due, scheduled_at, started_at, ended_at, duration_ms, stream,
                                last_seq)
    SELECT $1, moved.run_id, (n->>1)::bigint, n->>2, n->>3, (n->>4)::bigint, (n->>5)::bigint, (n->>6)::bigint, (n->>7)::bigint,
           (n->>8)::bigint, n->>9, n->>10, n->>11, n->>12, (n->>13)::bigint, (n->>14)::bigint, (n->>15)::bigint, (n->>16)::bigint,
           (n->>17)::bigint, n->>18, (n->>19)::bigint
      FROM moved, jsonb_array_elements($7::jsonb) AS n
    ON CONFLICT (project_id, run_id, branch_id, node_id) DO UPDATE SET
        status = excluded.status, attempt = excluded.attempt, attempt_ended = excluded.attempt_ended,
        generation = excluded.generation, failures = excluded.failures, lost = excluded.lost, outputs = excluded.outputs,
        error = excluded.error, checkpoint = excluded.checkpoint, reason = excluded.reason, due = excluded.due,
        scheduled_at = excluded.scheduled_at, started_at = excluded.started_at, ended_at = excluded.ended_at,
        duration_ms = excluded.duration_ms, stream = excluded.stream, last_seq = excluded.last_seq
)
SELECT run_id FROM moved;

-- name: step_on
-- As step_run, for what nearly every step of a sequence is: one node has completed, and the next one is scheduled and started. Nothing
-- was recorded of that one before, so that it has no row yet. With one parameter for each value, and only the columns that change, it
-- takes a third less of what step_run takes beyond one event and one row. `$5` to `$8` id, time, node and payload of the completion, `$9` to `$12` of the scheduling,
-- `$13` to `$15` id, time and payload of the start; `$16` outputs and `$17` duration of the completed node.
WITH moved AS (
    UPDATE run_state SET last_seq = $4::bigint + 3, version = version + 1
     WHERE project_id = $1 AND run_id = $2 AND lease_epoch = $3 AND last_seq = $4
    RETURNING run_id
), appended AS (
    INSERT INTO run_events (project_id, run_id, branch_id, epoch, seq, id, event_type, event_time, node_id, payload)
    SELECT $1, moved.run_id, 1, $3, e.*
      FROM moved,
           (VALUES ($4 + 1, $5::text, 'NodeCompleted', $6::bigint, $7::text, $8::text),
                   ($4 + 2, $9, 'NodeScheduled', $10, $11, $12),
                   ($4 + 3, $13, 'NodeStarted', $14, $11, $15)) AS e
), completed AS (
    UPDATE run_node_state AS n
       SET status = 'completed', outputs = $16, error = NULL, ended_at = $6, duration_ms = $17, last_seq = $4 + 1
      FROM moved
     WHERE n.project_id = $1 AND n.run_id = $2 AND n.branch_id = 1 AND n.node_id = $7
), started AS (
    INSERT INTO run_node_state (project_id, run_id, branch_id, node_id, status, attempt, attempt_ended, generation, failures, lost,
                                reason, scheduled_at, started_at, last_seq)
    SELECT $1, moved.run_id, 1, $11, 'running', 1, 0, 1, 0, 0, '', $10, $14, $4 + 3 FROM moved
)
SELECT run_id FROM moved;

-- name: step_items
-- As step_run, for a transition that also adds to streams. A statement of its own: who adds nothing pays nothing. `$8` items.
WITH moved AS (
    UPDATE run_state SET last_seq = $5, version = version + 1
     WHERE project_id = $1 AND run_id = $2 AND lease_epoch = $3 AND last_seq = $4
    RETURNING run_id
), appended AS (
    INSERT INTO run_events (project_id, run_id, seq, id, branch_id, epoch, event_type, event_time, node_id, payload)
    SELECT $1, moved.run_id, (e->>1)::bigint, e->>2, (e->>3)::bigint, (e->>4)::bigint, e->>5, (e->>6)::bigint, e->>7, e->>8
      FROM moved, jsonb_array_elements($6::jsonb) AS e
), put AS (
    INSERT INTO run_node_state (project_id, run_id, branch_id, node_id, status, attempt, attempt_ended, generation, failures, lost,
                                outputs, error, checkpoint, reason, due, scheduled_at, started_at, ended_at, duration_ms, stream,
                                last_seq)
    SELECT $1, moved.run_id, (n->>1)::bigint, n->>2, n->>3, (n->>4)::bigint, (n->>5)::bigint, (n->>6)::bigint, (n->>7)::bigint,
           (n->>8)::bigint, n->>9, n->>10, n->>11, n->>12, (n->>13)::bigint, (n->>14)::bigint, (n->>15)::bigint, (n->>16)::bigint,
           (n->>17)::bigint, n->>18, (n->>19)::bigint
      FROM moved, jsonb_array_elements($7::jsonb) AS n
    ON CONFLICT (project_id, run_id, branch_id, node_id) DO UPDATE SET
        status = excluded.status, attempt = excluded.attempt, attempt_ended = excluded.attempt_ended,
        generation = excluded.generation, failures = excluded.failures, lost = excluded.lost, outputs = excluded.outputs,
        error = excluded.error, checkpoint = excluded.checkpoint, reason = excluded.reason, due = excluded.due,
        scheduled_at = excluded.scheduled_at, started_at = excluded.started_at, ended_at = excluded.ended_at,
        duration_ms = excluded.duration_ms, stream = excluded.stream, last_seq = excluded.last_seq
), filled AS (
    INSERT INTO run_inbox_messages (project_id, run_id, branch_id, node_id, position, count, is_plain, seq, items)
    SELECT $1, moved.run_id, (i->>1)::bigint, i->>2, (i->>3)::bigint, (i->>4)::bigint, (i->>5)::bigint, (i->>6)::bigint, i->>7
      FROM moved, jsonb_array_elements($8::jsonb) AS i
)
SELECT run_id FROM moved;

-- name: commit_group
-- The commit of any group, in one statement. `$2` runs that go on, `$3` runs that begin, then rows with their run's id in front:
-- `$4` nodes whose steps are past, `$5` nodes, `$6` steps, `$7` blobs, `$8` commands, `$9` drops, `$10` items, `$11` branches, `$12`
-- waits, `$13` signals, `$14` checkpoints, `$15` events. What it returns are the runs that were written; nothing is written for the
-- others.
--   locked   fences: epoch and last_seq are still what the engine saw, and of a claim, nobody living owns the run. A row that
--            somebody else holds is left out, so that one locked run makes no other wait; `look_up` tells which these were. Not
--            stronger than NO KEY UPDATE: a command may arrive for the run meanwhile.
--   created  comes after the locks and in the order of run_id, so that two groups never wait for each other in a circle. What is
--            in the archive is not created again. That is asked twice: who has removed a run while this statement waited, or
--            since it began, has put it into the archive where this statement cannot see it, and `require_unarchived` can.
--   emptied  removes what was there before the statement, in no order with what `filled` adds. That is why a stream that is
--            dropped gets nothing by the same transition (`drop_rows`). Rows are looked up stream by stream and then removed by
--            their place, which leaves the planner no choice: this table is often empty when it is analysed, and from then on a
--            join would read all of it in every commit. No row of it ever moves, and nobody else removes those of a locked run.
--   forgotten  removes steps in the same way, and comes before `remembered`, which counts what it has removed: a step may be
--            written in the place of one that is past, because a row that this very transaction has removed is in nobody's way.
-- `commit_audited` is the same without the events, for runs whose logs are written on the side. A statement of its own: whoever names a
-- table has to wait for those who have locked it, also if nothing is written there.
-- One plan serves groups of every size and tables of every size: it is made once, perhaps while there is not one row. So nothing is left
-- to statistics. Rows are looked up one by one by their key (LATERAL), and changed by their place, which nobody can change while the
-- run is locked; if somebody did so before, since this statement began, the row is not found, and `look_up` tells that it was busy. In
-- the archive a run is the first one in the order of the key, which no other index has. `(… IN (…)) IS TRUE` is never turned into a join
-- and costs next to nothing: it is one probe of a hash table per row.
WITH moves AS (
    SELECT m->>0 AS run_id, (m->>1)::bigint AS epoch, (m->>2)::bigint AS base_seq, m->>3 AS claimant, m->>4 AS dead,
           (m->>5)::boolean AS releases, (m->>6)::bigint AS next_epoch, m->>7 AS status, (m->>8)::bigint AS branch_id,
           (m->>9)::bigint AS last_seq, m->>10 AS outputs, m->>11 AS error, m->>12 AS failed_node, m->>13 AS reason,
           (m->>14)::bigint AS recoveries, (m->>15)::bigint AS wake_at, (m->>16)::bigint AS started_at,
           (m->>17)::bigint AS ended_at, (m->>18)::bigint AS workflow_version, m->>19 AS graph_hash, m->>20 AS audit
      FROM jsonb_array_elements($2::jsonb) AS m
), locked AS (
    SELECT moves.*, r.place
      FROM (SELECT * FROM moves ORDER BY run_id COLLATE "C") AS moves,
           LATERAL (SELECT ctid AS place FROM run_state
                     WHERE project_id = $1 AND run_id = moves.run_id AND lease_epoch = moves.epoch AND last_seq = moves.base_seq
                       AND (moves.claimant IS NULL OR owner IS NULL OR owner = moves.dead
                            OR (owner IN (SELECT engine_id FROM engines WHERE expires_at > now())) IS NOT TRUE)
                       FOR NO KEY UPDATE SKIP LOCKED) AS r
), moved AS (
    UPDATE run_state AS r
       SET last_seq = locked.last_seq, version = r.version + 1, lease_epoch = locked.next_epoch,
           owner = CASE WHEN locked.releases THEN NULL ELSE coalesce(locked.claimant, r.owner) END, status = locked.status,
           branch_id = locked.branch_id, outputs = locked.outputs, error = locked.error, failed_node = locked.failed_node,
           reason = locked.reason, recoveries = locked.recoveries, wake_at = locked.wake_at, started_at = locked.started_at,
           ended_at = locked.ended_at, workflow_version = coalesce(locked.workflow_version, r.workflow_version),
           graph_hash = coalesce(locked.graph_hash, r.graph_hash), audit = locked.audit
      FROM locked
     WHERE r.ctid = locked.place AND r.lease_epoch = locked.epoch AND r.last_seq = locked.base_seq
    RETURNING r.run_id
), created AS (
    INSERT INTO run_state (project_id, run_id, owner, lease_epoch, version, workflow, workflow_version, graph_hash, status,
                           branch_id, last_seq, inputs, settings, source, outputs, error, failed_node, reason, recoveries,
                           wake_at, created_at, started_at, ended_at, audit)
    SELECT $1, c->>0, c->>1, (c->>2)::bigint, 1, c->>3, (c->>4)::bigint, c->>5, c->>6, (c->>7)::bigint, (c->>8)::bigint, c->>9,
           c->>10, c->>11, c->>12, c->>13, c->>14, c->>15, (c->>16)::bigint, (c->>17)::bigint, (c->>18)::bigint, (c->>19)::bigint,
           (c->>20)::bigint, c->>21
      FROM jsonb_array_elements($3::jsonb) AS c
     WHERE (SELECT count(*) FROM locked) >= 0
       AND (SELECT (project_id, run_id) = ($1, c->>0)
              FROM run_archives
             WHERE (project_id, run_id) >= ($1, c->>0) ORDER BY project_id, run_id LIMIT 1) IS NOT TRUE
     ORDER BY (c->>0) COLLATE "C"
    ON CONFLICT (project_id, run_id) DO NOTHING
    RETURNING run_id
), written AS (
    SELECT run_id FROM moved UNION ALL SELECT run_id FROM created
), branched AS (
    INSERT INTO run_branches (project_id, run_id, branch_id, parent_id, cut_seq, dropped, retried, given, reason, asked_as,
                              created_at, created_seq, restored)
    SELECT $1, run_id, 1, NULL::bigint, NULL::bigint, '[]', '[]', '{}', '', '', 0, 1, 0 FROM created
     UNION ALL
    SELECT $1, b->>0, (b->>1)::bigint, (b->>2)::bigint, (b->>3)::bigint, b->>4, b->>5, b->>6, b->>7, b->>8,
           (b->>9)::bigint, (b->>10)::bigint, (b->>11)::bigint
      FROM jsonb_array_elements($11::jsonb) AS b
     WHERE (b->>0 IN (SELECT run_id FROM written)) IS TRUE
-- not in commit_audited:
), appended AS (
    INSERT INTO run_events (project_id, run_id, seq, id, branch_id, epoch, event_type, event_time, node_id, payload)
    SELECT $1, e->>0, (e->>1)::bigint, e->>2, (e->>3)::bigint, (e->>4)::bigint, e->>5, (e->>6)::bigint, e->>7, e->>8
      FROM jsonb_array_elements($15::jsonb) AS e
     WHERE (e->>0 IN (SELECT run_id FROM written)) IS TRUE
-- in both:
), put AS (
    INSERT INTO run_node_state (project_id, run_id, branch_id, node_id, status, attempt, attempt_ended, generation, failures, lost,
                                outputs, error, checkpoint, reason, due, scheduled_at, started_at, ended_at, duration_ms, stream,
                                last_seq)
    SELECT $1, n->>0, (n->>1)::bigint, n->>2, n->>3, (n->>4)::bigint, (n->>5)::bigint, (n->>6)::bigint, (n->>7)::bigint,
           (n->>8)::bigint, n->>9, n->>10, n->>11, n->>12, (n->>13)::bigint, (n->>14)::bigint, (n->>15)::bigint, (n->>16)::bigint,
           (n->>17)::bigint, n->>18, (n->>19)::bigint
      FROM jsonb_array_elements($5::jsonb) AS n
     WHERE (n->>0 IN (SELECT run_id FROM written)) IS TRUE
    ON CONFLICT (project_id, run_id, branch_id, node_id) DO UPDATE SET
        status = excluded.status, attempt = excluded.attempt, attempt_ended = excluded.attempt_ended,
        generation = excluded.generation, failures = excluded.failures, lost = excluded.lost, outputs = excluded.outputs,
        error = excluded.error, checkpoint = excluded.checkpoint, reason = excluded.reason, due = excluded.due,
        scheduled_at = excluded.scheduled_at, started_at = excluded.started_at, ended_at = excluded.ended_at,
        duration_ms = excluded.duration_ms, stream = excluded.stream, last_seq = excluded.last_seq
), forgotten AS (
    DELETE FROM run_steps
     WHERE ctid = ANY (ARRAY(
           SELECT s.ctid
             FROM jsonb_array_elements($4::jsonb) AS p,
                  LATERAL (SELECT ctid FROM run_steps
                            WHERE project_id = $1 AND run_id = p->>0 AND branch_id = (p->>1)::bigint AND node_id = p->>2
                           OFFSET 0) AS s
            WHERE (p->>0 IN (SELECT run_id FROM written)) IS TRUE))
    RETURNING run_id
), remembered AS (
    INSERT INTO run_steps (project_id, run_id, branch_id, node_id, name, occurrence, result, seq)
    SELECT $1, s->>0, (s->>1)::bigint, s->>2, s->>3, (s->>4)::bigint, s->>5, (s->>6)::bigint
      FROM jsonb_array_elements($6::jsonb) AS s
     WHERE (s->>0 IN (SELECT run_id FROM written)) IS TRUE AND (SELECT count(*) FROM forgotten) >= 0
), used AS (
    INSERT INTO blobs (project_id, run_id, digest, size)
    SELECT $1, b->>0, b->>1, (b->>2)::bigint
      FROM jsonb_array_elements($7::jsonb) AS b
     WHERE (b->>0 IN (SELECT run_id FROM written)) IS TRUE
    ON CONFLICT (project_id, digest, run_id) DO NOTHING
), taken AS (
    UPDATE run_commands AS c
       SET taken_seq = t.seq
      FROM (SELECT (w->>2)::bigint AS seq, k.place
              FROM jsonb_array_elements($8::jsonb) AS w,
                   LATERAL (SELECT ctid AS place, taken_seq FROM run_commands
                             WHERE project_id = $1 AND run_id = w->>0 AND command_id = w->>1
                            OFFSET 0) AS k
             WHERE k.taken_seq IS NULL AND (w->>0 IN (SELECT run_id FROM written)) IS TRUE) AS t
     WHERE c.ctid = t.place
), emptied AS (
    DELETE FROM run_inbox_messages
     WHERE ctid = ANY (ARRAY(
           SELECT m.ctid
             FROM jsonb_array_elements($9::jsonb) AS d,
                  LATERAL (SELECT ctid FROM run_inbox_messages
                            WHERE project_id = $1 AND run_id = d->>0 AND branch_id = (d->>1)::bigint AND node_id = d->>2
                              AND position >= (d->>3)::bigint
                           OFFSET 0) AS m
            WHERE (d->>0 IN (SELECT run_id FROM written)) IS TRUE))
), filled AS (
    INSERT INTO run_inbox_messages (project_id, run_id, branch_id, node_id, position, count, is_plain, seq, items)
    SELECT $1, i->>0, (i->>1)::bigint, i->>2, (i->>3)::bigint, (i->>4)::bigint, (i->>5)::bigint, (i->>6)::bigint, i->>7
      FROM jsonb_array_elements($10::jsonb) AS i
     WHERE (i->>0 IN (SELECT run_id FROM written)) IS TRUE
), awaited AS (
    INSERT INTO run_waits (project_id, run_id, branch_id, wait_id, node_id, kind, name, occurrence, status, question, signal,
                           signal_id, due, result, responded_by, opened_at, settled_at, last_seq)
    SELECT $1, w->>0, (w->>1)::bigint, w->>2, w->>3, w->>4, w->>5, (w->>6)::bigint, w->>7, w->>8, w->>9, w->>10, (w->>11)::bigint,
           w->>12, w->>13, (w->>14)::bigint, (w->>15)::bigint, (w->>16)::bigint
      FROM jsonb_array_elements($12::jsonb) AS w
     WHERE (w->>0 IN (SELECT run_id FROM written)) IS TRUE
    ON CONFLICT (project_id, run_id, branch_id, wait_id) DO UPDATE SET
        node_id = excluded.node_id, kind = excluded.kind, name = excluded.name, occurrence = excluded.occurrence,
        status = excluded.status, question = excluded.question, signal = excluded.signal, signal_id = excluded.signal_id,
        due = excluded.due, result = excluded.result, responded_by = excluded.responded_by, opened_at = excluded.opened_at,
        settled_at = excluded.settled_at, last_seq = excluded.last_seq
), signalled AS (
    INSERT INTO run_signals (project_id, run_id, signal_id, name, value, received_at, seq)
    SELECT $1, s->>0, s->>1, s->>2, s->>3, (s->>4)::bigint, (s->>5)::bigint
      FROM jsonb_array_elements($13::jsonb) AS s
     WHERE (s->>0 IN (SELECT run_id FROM written)) IS TRUE
), saved AS (
    INSERT INTO run_checkpoints (project_id, run_id, name, branch_id, seq, event_seq, periodic, asked_as, saved_at)
    SELECT $1, c->>0, c->>1, (c->>2)::bigint, (c->>3)::bigint, (c->>4)::bigint, (c->>5)::bigint, c->>6, (c->>7)::bigint
      FROM jsonb_array_elements($14::jsonb) AS c
     WHERE (c->>0 IN (SELECT run_id FROM written)) IS TRUE
)
SELECT run_id FROM written
 WHERE (SELECT require_unarchived($1, array_agg(run_id)) FROM created HAVING count(*) > 0) IS NOT FALSE;

-- name: look_up
-- What became of transitions that were not written: what the run's row says of its last one where the log is written on the side,
-- whether the run still is where the engine saw it, so that somebody holds its row, and which event stands where the first one of
-- each would. Both tell whether it was written before its answer was lost. `look_up_audited` does not touch the log, which others may
-- have locked.
SELECT asked.run_id, r.audit,
       coalesce(r.lease_epoch = asked.epoch AND r.last_seq = asked.base_seq
                AND (NOT asked.claims OR r.owner IS NULL OR r.owner = asked.dead
                     OR NOT EXISTS (SELECT FROM engines AS a WHERE a.engine_id = r.owner AND a.expires_at > now())), false)
-- not in look_up_audited:
       , e.id
-- in both:
  FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::boolean[], $6::text[])
       AS asked (run_id, epoch, base_seq, claims, dead)
-- not in look_up_audited:
  LEFT JOIN LATERAL (SELECT id FROM run_events
                      WHERE project_id = $1 AND run_id = asked.run_id AND seq = asked.base_seq + 1
                     OFFSET 0) AS e ON true
-- in both:
  LEFT JOIN LATERAL (SELECT audit, lease_epoch, last_seq, owner FROM run_state
                      WHERE project_id = $1 AND run_id = asked.run_id
                     OFFSET 0) AS r ON true;

-- name: version_by_hash
-- Saving the same graph again gives the version it has.
SELECT workflow, version, graph_hash, graph, source, created_at
  FROM workflow_versions WHERE project_id = $1 AND workflow = $2 AND graph_hash = $3;

-- name: lock_workflow
-- Versions of one name are numbered one after the other. A statement of its own: the next one sees what the last holder wrote.
SELECT pg_advisory_xact_lock(hashtextextended($1 || '/' || $2, 0));

-- name: insert_version
-- The next number of the name; none if the graph has one by now.
INSERT INTO workflow_versions (project_id, workflow, version, graph_hash, graph, source, created_at)
SELECT $1, $2, coalesce(max(version), 0) + 1, $3, $4, $5, $6 FROM workflow_versions WHERE project_id = $1 AND workflow = $2
ON CONFLICT (project_id, workflow, graph_hash) DO NOTHING
RETURNING version;

-- name: load_version
-- The graph a run was started with.
SELECT workflow, version, graph_hash, graph, source, created_at
  FROM workflow_versions WHERE project_id = $1 AND workflow = $2 AND version = $3;

-- name: list_versions
-- What is saved, optionally of one name.
SELECT workflow, version, graph_hash, graph, source, created_at
  FROM workflow_versions WHERE project_id = $1 AND ($2::text IS NULL OR workflow = $2) ORDER BY workflow, version;

-- name: why_kept
-- What keeps a version from being deleted: is_there, is_newest, is_aliased, is_used.
SELECT EXISTS (SELECT 1 FROM workflow_versions WHERE project_id = $1 AND workflow = $2 AND version = $3::bigint),
       coalesce($3 = (SELECT max(version) FROM workflow_versions WHERE project_id = $1 AND workflow = $2), FALSE),
       EXISTS (SELECT 1 FROM workflow_aliases
                WHERE project_id = $1 AND workflow = $2 AND (targets::jsonb) ? ($3::bigint)::text),
       EXISTS (SELECT 1 FROM run_state WHERE project_id = $1 AND workflow = $2 AND workflow_version = $3);

-- name: delete_version
-- A version to which nothing refers. Whether a run does that is being created is for the foreign key to say.
DELETE FROM workflow_versions WHERE project_id = $1 AND workflow = $2 AND version = $3;

-- name: count_runs
-- How far a version has spread.
SELECT workflow_version, count(*) FROM run_state WHERE project_id = $1 AND workflow = $2 GROUP BY workflow_version;

-- name: known_versions
-- Which of the versions are there that an alias is to point at.
SELECT version FROM workflow_versions WHERE project_id = $1 AND workflow = $2 AND version = ANY ($3::bigint[]);

-- name: move_alias
-- One row is the whole move. It has to follow the last one.
INSERT INTO workflow_alias_moves (project_id, workflow, alias, revision, targets, restores, moved_at)
SELECT $1, $2, $3, $4::bigint, $5, $6::bigint, $7::bigint
 WHERE $4 = 1 + coalesce((SELECT max(revision) FROM workflow_alias_moves
                           WHERE project_id = $1 AND workflow = $2 AND alias = $3), 0)
ON CONFLICT DO NOTHING
RETURNING revision;

-- name: load_alias
-- The last move of an alias, and the newest version.
SELECT (SELECT max(version) FROM workflow_versions WHERE project_id = $1 AND workflow = $2),
       m.workflow, m.alias, m.revision, m.targets, m.restores, m.moved_at
  FROM (SELECT 1) AS one LEFT JOIN (SELECT * FROM workflow_alias_moves WHERE project_id = $1 AND workflow = $2 AND alias = $3
                                     ORDER BY revision DESC LIMIT 1) AS m ON TRUE;

-- name: list_aliases
-- Where aliases point, optionally of one workflow.
SELECT workflow, alias, revision, targets, NULL::bigint, moved_at
  FROM workflow_aliases WHERE project_id = $1 AND ($2::text IS NULL OR workflow = $2) ORDER BY workflow, alias;

-- name: list_alias_moves
-- Where an alias has pointed.
SELECT workflow, alias, revision, targets, restores, moved_at
  FROM workflow_alias_moves WHERE project_id = $1 AND workflow = $2 AND alias = $3 ORDER BY revision;

-- name: load_state
-- The run's own row.
SELECT project_id, run_id, lease_epoch, workflow, workflow_version, graph_hash, status, branch_id, last_seq, inputs,
       settings, source, outputs, error, failed_node, reason, recoveries, wake_at, created_at, started_at, ended_at, audit
  FROM run_state WHERE project_id = $1 AND run_id = $2;

-- name: load_run
-- The run with what belongs to its branch and what waits for its owner: so many (`$3`) items for its inputs, and so many of all
-- else, which they do not hide. Of branches also those with larger numbers, on which it never was: hardly ever is there one. One
-- statement, because only that is one snapshot; each row says what kind it is.
WITH run AS (SELECT * FROM run_state WHERE project_id = $1 AND run_id = $2)
SELECT 'run', ROW(project_id, run_id, lease_epoch, workflow, workflow_version, graph_hash, status, branch_id, last_seq, inputs,
                  settings, source, outputs, error, failed_node, reason, recoveries, wake_at, created_at, started_at, ended_at,
                  audit, owner)
  FROM run
UNION ALL
SELECT 'node', ROW(branch_id, node_id, status, attempt, attempt_ended, generation, failures, lost, outputs, error, checkpoint,
                   reason, due, scheduled_at, started_at, ended_at, duration_ms, stream, last_seq)
  FROM run_node_state WHERE project_id = $1 AND run_id = $2 AND branch_id = (SELECT branch_id FROM run)
UNION ALL
SELECT 'step', ROW(branch_id, node_id, name, occurrence, result, seq)
  FROM run_steps WHERE project_id = $1 AND run_id = $2 AND branch_id = (SELECT branch_id FROM run)
UNION ALL
SELECT 'wait', ROW(branch_id, wait_id, node_id, kind, name, occurrence, status, question, signal, signal_id, due, result,
                   responded_by, opened_at, settled_at, last_seq)
  FROM run_waits WHERE project_id = $1 AND run_id = $2 AND branch_id = (SELECT branch_id FROM run)
UNION ALL
SELECT 'signal', ROW(signal_id, name, value, received_at, seq)
  FROM run_signals WHERE project_id = $1 AND run_id = $2
UNION ALL
(SELECT 'command', ROW(command_id, run_id, kind, payload, created_at)
   FROM run_commands WHERE project_id = $1 AND run_id = $2 AND taken_seq IS NULL AND kind IN ('send', 'close')
  ORDER BY created_at, command_id LIMIT $3)
UNION ALL
(SELECT 'command', ROW(command_id, run_id, kind, payload, created_at)
   FROM run_commands WHERE project_id = $1 AND run_id = $2 AND taken_seq IS NULL AND kind NOT IN ('send', 'close')
  ORDER BY created_at, command_id LIMIT $3)
UNION ALL
SELECT 'branch', ROW(branch_id, parent_id, cut_seq, dropped, retried, given, reason, asked_as, created_at, created_seq,
                     restored)
  FROM run_branches WHERE project_id = $1 AND run_id = $2 AND branch_id >= (SELECT branch_id FROM run)
UNION ALL
SELECT 'mark', ROW(seq, branch_id, epoch, event_type)
  FROM last_events($1, $2, $4) WHERE (SELECT audit FROM run) IS NULL;

-- name: load_node
-- A node of the run's branch.
SELECT n.branch_id, n.node_id, n.status, n.attempt, n.attempt_ended, n.generation, n.failures, n.lost, n.outputs, n.error,
       n.checkpoint, n.reason, n.due, n.scheduled_at, n.started_at, n.ended_at, n.duration_ms, n.stream, n.last_seq
  FROM run_node_state AS n
 WHERE n.project_id = $1 AND n.run_id = $2 AND n.node_id = $3
   AND n.branch_id = (SELECT branch_id FROM run_state WHERE project_id = $1 AND run_id = $2);

-- name: dump_run
-- Everything about a run, as load_run does it. Events have their key behind them; steps are those of the run's branch.
WITH run AS (SELECT * FROM run_state WHERE project_id = $1 AND run_id = $2)
SELECT 'run', ROW(project_id, run_id, lease_epoch, workflow, workflow_version, graph_hash, status, branch_id, last_seq, inputs,
                  settings, source, outputs, error, failed_node, reason, recoveries, wake_at, created_at, started_at, ended_at,
                  audit, owner)
  FROM run
UNION ALL
SELECT 'node', ROW(branch_id, node_id, status, attempt, attempt_ended, generation, failures, lost, outputs, error, checkpoint,
                   reason, due, scheduled_at, started_at, ended_at, duration_ms, stream, last_seq)
  FROM run_node_state WHERE project_id = $1 AND run_id = $2
UNION ALL
SELECT 'step', ROW(branch_id, node_id, name, occurrence, result, seq)
  FROM run_steps WHERE project_id = $1 AND run_id = $2 AND branch_id = (SELECT branch_id FROM run)
UNION ALL
SELECT 'wait', ROW(branch_id, wait_id, node_id, kind, name, occurrence, status, question, signal, signal_id, due, result,
                   responded_by, opened_at, settled_at, last_seq)
  FROM run_waits WHERE project_id = $1 AND run_id = $2
UNION ALL
SELECT 'signal', ROW(signal_id, name, value, received_at, seq)
  FROM run_signals WHERE project_id = $1 AND run_id = $2
UNION ALL
SELECT 'command', ROW(command_id, run_id, kind, payload, created_at)
  FROM run_commands WHERE project_id = $1 AND run_id = $2 AND taken_seq IS NULL
UNION ALL
(SELECT 'mark', ROW(seq, branch_id, epoch, event_type)
   FROM run_events WHERE project_id = $1 AND run_id = $2 AND (SELECT audit FROM run) IS NULL ORDER BY seq DESC LIMIT $3)
UNION ALL
SELECT 'event', ROW(seq, id, branch_id, epoch, event_time, payload)
  FROM run_events WHERE project_id = $1 AND run_id = $2
UNION ALL
SELECT 'segment', ROW(last_seq, events)
  FROM run_log_segments WHERE project_id = $1 AND run_id = $2
UNION ALL
SELECT 'version', ROW(v.workflow, v.version, v.graph_hash, v.graph, v.source, v.created_at)
  FROM run JOIN workflow_versions AS v
    ON v.project_id = run.project_id AND v.workflow = run.workflow AND v.version = run.workflow_version
UNION ALL
SELECT 'blob', ROW(digest, size)
  FROM blobs WHERE project_id = $1 AND run_id = $2
UNION ALL
SELECT 'item', ROW(branch_id, node_id, position, count, is_plain, seq, items)
  FROM run_inbox_messages WHERE project_id = $1 AND run_id = $2
UNION ALL
SELECT 'checkpoint', ROW(name, branch_id, seq, event_seq, periodic, asked_as, saved_at)
  FROM run_checkpoints WHERE project_id = $1 AND run_id = $2
UNION ALL
SELECT 'branch', ROW(branch_id, parent_id, cut_seq, dropped, retried, given, reason, asked_as, created_at, created_seq,
                     restored)
  FROM run_branches WHERE project_id = $1 AND run_id = $2;

-- name: load_events
-- A page of the log.
SELECT seq, id, branch_id, epoch, event_time, payload
  FROM run_events WHERE project_id = $1 AND run_id = $2 AND seq > $3 ORDER BY seq LIMIT $4;

-- name: next_segment
-- The older part of a long log: the next events that are not rows of their own any more.
SELECT events FROM run_log_segments WHERE project_id = $1 AND run_id = $2 AND last_seq > $3 ORDER BY last_seq LIMIT 1;

-- name: begin_audited
-- What is written here may be lost, waits for nobody for long, and whoever waited sees what was written meanwhile.
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL synchronous_commit = off;
SET LOCAL lock_timeout = '1s';
SET LOCAL statement_timeout = '5s';
SET LOCAL idle_in_transaction_session_timeout = '5s';

-- name: hold_logs
-- Of these runs nothing is made compact meanwhile. A statement of its own: the next one sees what was.
SELECT pg_advisory_xact_lock_shared(hashtextextended($1 || '/' || run_id, 1)) FROM unnest($2::text[]) AS run_id;

-- name: hold_log
-- As hold_logs, for whoever makes one compact.
SELECT pg_advisory_xact_lock(hashtextextended($1 || '/' || $2, 1));

-- name: append_audited
-- Events of runs whose logs are written on the side. As in SQLite; and not of a run that is being removed at this moment. Commits do
-- not wait for those who hold the key of a row. What a row says of its arrival is looked for in the text of it, because PostgreSQL
-- takes no document apart that has a NUL anywhere; in JSON, what looks like this name and its value is nothing else.
WITH entries AS (
    SELECT e->>0 AS run_id, (e->>1)::bigint AS seq, e->>2 AS id, (e->>3)::bigint AS branch_id, (e->>4)::bigint AS epoch,
           e->>5 AS event_type, (e->>6)::bigint AS event_time, e->>7 AS node_id, e->>8 AS payload, (e->>9)::bigint AS created_at,
           '"arrival":"' || (e->>10) || '"' AS arrival
      FROM jsonb_array_elements($2::jsonb) AS e
), there AS (
    SELECT r.run_id, r.created_at, r.last_seq,
           coalesce(substring(r.audit FROM '"arrival":"[^"]*"'), '"arrival":""') AS arrival
      FROM run_state AS r
     WHERE r.project_id = $1 AND r.run_id = ANY ($3::text[]) AND r.audit IS NOT NULL
       AND NOT EXISTS (SELECT FROM run_deletions AS d WHERE d.project_id = $1 AND d.run_id = r.run_id)
       FOR KEY SHARE OF r SKIP LOCKED
)
INSERT INTO run_events (project_id, run_id, seq, id, branch_id, epoch, event_type, event_time, node_id, payload)
SELECT $1, n.run_id, n.seq, n.id, n.branch_id, n.epoch, n.event_type, n.event_time, n.node_id, n.payload
  FROM entries AS n JOIN there AS r
    ON r.run_id = n.run_id AND r.created_at = n.created_at AND r.arrival = n.arrival AND r.last_seq >= n.seq
 WHERE NOT EXISTS (SELECT FROM run_log_segments AS s WHERE s.project_id = $1 AND s.run_id = n.run_id AND s.last_seq >= n.seq)
ON CONFLICT (project_id, run_id, seq) DO NOTHING;

-- name: count_events
-- How many events are rows, up to one of them.
SELECT count(*) FROM run_events WHERE project_id = $1 AND run_id = $2 AND seq <= $3;

-- name: list_segments
-- The older part of a long log, without what is in it.
SELECT first_seq, last_seq, first_epoch, last_epoch, first_time, last_time, reopens
  FROM run_log_segments WHERE project_id = $1 AND run_id = $2 ORDER BY last_seq;

-- name: take_oldest_events
-- What the next segment is made of. Of two who want the same rows, the second waits for the first one and finds none.
DELETE FROM run_events
 WHERE project_id = $1 AND run_id = $2
   AND seq <= (SELECT max(seq)
                 FROM (SELECT seq FROM run_events WHERE project_id = $1 AND run_id = $2 AND seq <= $3 ORDER BY seq LIMIT $4) AS oldest)
RETURNING seq, id, branch_id, epoch, event_time, payload, event_type, node_id;

-- name: put_segment
-- Many events in a row.
INSERT INTO run_log_segments (project_id, run_id, last_seq, first_seq, first_epoch, last_epoch, first_time, last_time, reopens,
                              events)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- name: long_logs
-- Runs with more than so many (`$2`) events that are rows, or would be if none were missing, in the order of their ids. `$3` where
-- the last page ended.
SELECT run_id, last_seq, in_segments, is_audited
  FROM (SELECT r.run_id, r.last_seq, coalesce((SELECT max(s.last_seq) FROM run_log_segments AS s
                                                WHERE s.project_id = r.project_id AND s.run_id = r.run_id), 0) AS in_segments,
               r.audit IS NOT NULL AS is_audited
          FROM run_state AS r
         WHERE r.project_id = $1 AND r.last_seq > $2 AND r.run_id > $3) AS long
 WHERE last_seq - in_segments > $2
 ORDER BY run_id LIMIT $4;

-- name: load_items_by_position
-- A page of a stream, as it was yielded.
SELECT branch_id, node_id, position, count, is_plain, seq, items
  FROM run_inbox_messages
 WHERE project_id = $1 AND run_id = $2 AND branch_id = $3 AND node_id = $4 AND position > $5
 ORDER BY position LIMIT $6;

-- name: load_items_by_seq
-- A page of a stream, as it was recorded.
SELECT branch_id, node_id, position, count, is_plain, seq, items
  FROM run_inbox_messages
 WHERE project_id = $1 AND run_id = $2 AND branch_id = $3 AND node_id = $4 AND (seq, position) > ($5, $6)
 ORDER BY seq, position LIMIT $7;

-- name: load_ranges
-- Where the entries of a run's streams are.
SELECT branch_id, node_id, position, count, seq
  FROM run_inbox_messages WHERE project_id = $1 AND run_id = $2 ORDER BY branch_id, node_id, position;

-- name: used_blobs
-- For collection: which of these are referred to, in any project. The projects are found by leaps through the index: there are
-- few, and rows that are written all the time need no second index. What a command says is recorded when it is taken.
WITH RECURSIVE projects (id) AS (
    SELECT min(project_id) FROM blobs
     UNION ALL
    SELECT (SELECT min(project_id) FROM blobs WHERE project_id > id) FROM projects WHERE id IS NOT NULL
)
SELECT wanted.digest FROM unnest($1::text[]) AS wanted (digest)
 WHERE EXISTS (SELECT 1 FROM projects AS p JOIN blobs AS b ON b.project_id = p.id AND b.digest = wanted.digest)
    OR EXISTS (SELECT 1 FROM run_commands WHERE taken_seq IS NULL AND strpos(payload, wanted.digest) > 0);

-- name: list_runs
-- A page of runs, newest first.
SELECT run_id, workflow, workflow_version, status, created_at, started_at, ended_at, owner, reason, wake_at,
       (SELECT deleted_at FROM run_deletions AS d WHERE d.project_id = run_state.project_id AND d.run_id = run_state.run_id),
       (SELECT json_agg(tag ORDER BY tag)::text FROM run_tags AS t
         WHERE t.project_id = run_state.project_id AND t.run_id = run_state.run_id)
  FROM run_state
 WHERE project_id = $1
   AND ($2::text[] IS NULL OR status = ANY($2))
   AND ($3::text IS NULL OR workflow = $3)
   AND ($4::text IS NULL OR starts_with(run_id, $4))
   AND ($5::bigint IS NULL OR (created_at, run_id) < ($5, $6::text))
 ORDER BY created_at DESC, run_id DESC LIMIT $7;

-- name: list_tagged_runs
-- As list_runs, of those that have a tag (`$8`): found by it, because few may have it.
SELECT r.run_id, r.workflow, r.workflow_version, r.status, r.created_at, r.started_at, r.ended_at, r.owner, r.reason, r.wake_at,
       (SELECT deleted_at FROM run_deletions AS d WHERE d.project_id = r.project_id AND d.run_id = r.run_id),
       (SELECT json_agg(tag ORDER BY tag)::text FROM run_tags AS t WHERE t.project_id = r.project_id AND t.run_id = r.run_id)
  FROM run_tags AS chosen JOIN run_state AS r ON r.project_id = chosen.project_id AND r.run_id = chosen.run_id
 WHERE chosen.project_id = $1 AND chosen.tag = $8
   AND ($2::text[] IS NULL OR r.status = ANY($2))
   AND ($3::text IS NULL OR r.workflow = $3)
   AND ($4::text IS NULL OR starts_with(r.run_id, $4))
   AND ($5::bigint IS NULL OR (r.created_at, r.run_id) < ($5, $6::text))
 ORDER BY r.created_at DESC, r.run_id DESC LIMIT $7;

-- name: tag_run
-- Tags that a run has already change nothing.
INSERT INTO run_tags (project_id, run_id, tag) SELECT $1, $2, unnest($3::text[])
ON CONFLICT (project_id, run_id, tag) DO NOTHING;

-- name: untag_run
-- Tags that a run has not change nothing.
DELETE FROM run_tags WHERE project_id = $1 AND run_id = $2 AND tag = ANY ($3::text[]);

-- name: page_tags
-- The tags of a run, page by page.
SELECT tag FROM run_tags WHERE project_id = $1 AND run_id = $2 AND tag > $3 ORDER BY tag LIMIT $4;

-- name: add_command
-- Durable before it is acknowledged; the same id twice for a run has no effect. Later than all that wait, whatever the clocks say.
-- Not after `$7`, if there is such a command.
INSERT INTO run_commands (project_id, run_id, command_id, kind, payload, created_at)
SELECT $1, $2, $3, $4, $5, greatest($6::bigint, 1 + (
    SELECT max(created_at) FROM run_commands WHERE project_id = $1 AND run_id = $2 AND taken_seq IS NULL))
 WHERE NOT EXISTS (SELECT FROM run_commands WHERE project_id = $1 AND run_id = $2 AND command_id = $7::text)
ON CONFLICT (project_id, run_id, command_id) DO NOTHING
RETURNING command_id;

-- name: load_command
-- Whether a command whose id was there already is the same one, perhaps because its answer was lost.
SELECT command_id, run_id, kind, payload, created_at
  FROM run_commands WHERE project_id = $1 AND run_id = $2 AND command_id = $3;

-- name: lock_ended
-- A run that has ended: nobody can tell it anything from here on, nor take it up.
SELECT run_id FROM run_state
 WHERE project_id = $1 AND run_id = $2 AND status IN ('completed', 'failed', 'cancelled') AND owner IS NULL
   FOR UPDATE;

-- name: withdraw_command
-- Nothing is to come of a command for a run that is locked so, unless somebody wants that to go on. A statement of its own: it sees
-- what was told before the lock.
DELETE FROM run_commands
 WHERE project_id = $1 AND run_id = $2 AND command_id = $3 AND taken_seq IS NULL
   AND NOT EXISTS (SELECT FROM run_commands AS c
                    WHERE c.project_id = $1 AND c.run_id = $2 AND c.taken_seq IS NULL AND c.kind IN ('retry', 'jump', 'restore'))
RETURNING command_id;

-- name: hold_end
-- The commands that must not come after another one wait here until it is known whether it came first; they do not wait for each
-- other. A statement of its own: the next one sees what the last holder wrote.
SELECT pg_advisory_xact_lock_shared(hashtextextended($1 || '/' || $2 || '/' || $3, 1));

-- name: end_commands
-- The command after which those must not come: it waits until each of them is in or out.
SELECT pg_advisory_xact_lock(hashtextextended($1 || '/' || $2 || '/' || $3, 1));

-- name: latest_commands
-- A page of what waits for the run's owner, newest first. `$3`, `$4` where the last page ended.
SELECT command_id, run_id, kind, payload, created_at
  FROM run_commands
 WHERE project_id = $1 AND run_id = $2 AND taken_seq IS NULL
   AND created_at <= $3 AND (created_at < $3 OR command_id < $4)
 ORDER BY created_at DESC, command_id DESC LIMIT $5;

-- name: pending_commands
-- What the runs of one engine have been asked to do: of each run so many (`$3`) items for its inputs, and so many of all else, so
-- that neither they nor other runs hide it. The runs are found by leaps, as in find_claimable.
WITH RECURSIVE addressed (run_id) AS (
    (SELECT run_id FROM run_commands WHERE project_id = $1 AND taken_seq IS NULL ORDER BY run_id LIMIT 1)
     UNION ALL
    SELECT following.run_id
      FROM addressed
           CROSS JOIN LATERAL (SELECT run_id FROM run_commands
                                WHERE project_id = $1 AND taken_seq IS NULL AND run_id > addressed.run_id
                                ORDER BY run_id LIMIT 1) AS following
), owned AS (
    SELECT addressed.run_id
      FROM addressed
           CROSS JOIN LATERAL (SELECT owner FROM run_state WHERE project_id = $1 AND run_id = addressed.run_id OFFSET 0) AS r
     WHERE r.owner = $2
)
SELECT c.command_id, c.run_id, c.kind, c.payload, c.created_at
  FROM owned
       CROSS JOIN LATERAL (
           (SELECT command_id, run_id, kind, payload, created_at FROM run_commands
             WHERE project_id = $1 AND run_id = owned.run_id AND taken_seq IS NULL AND kind IN ('send', 'close')
             ORDER BY created_at, command_id LIMIT $3)
           UNION ALL
           (SELECT command_id, run_id, kind, payload, created_at FROM run_commands
             WHERE project_id = $1 AND run_id = owned.run_id AND taken_seq IS NULL AND kind NOT IN ('send', 'close')
             ORDER BY created_at, command_id LIMIT $3)) AS c
 ORDER BY c.created_at, c.command_id;

-- name: register_engine
-- The engine's row. Its id is never used again, so a second time it is the same engine that did not hear the first answer.
INSERT INTO engines (engine_id, name, host, pid, process_start, expires_at)
VALUES ($1, $2, $3, $4, $5, clock_timestamp() + make_interval(secs => $6))
ON CONFLICT (engine_id) DO UPDATE SET expires_at = excluded.expires_at;

-- name: renew_engine
-- Only one that has not expired may go on: no row, no life.
UPDATE engines SET expires_at = clock_timestamp() + make_interval(secs => $2)
 WHERE engine_id = $1 AND expires_at > clock_timestamp()
RETURNING engine_id;

-- name: retire_engine
-- The engine goes, and lets go of what it still owns. Rows in the order in which commits lock them.
WITH owned AS (
    SELECT project_id, run_id FROM run_state WHERE owner = $1 ORDER BY run_id FOR NO KEY UPDATE
), released AS (
    UPDATE run_state AS r SET owner = NULL, version = version + 1
      FROM owned WHERE r.project_id = owned.project_id AND r.run_id = owned.run_id
)
DELETE FROM engines WHERE engine_id = $1;

-- name: forget_engines
-- Rows that nobody needs any more; `$1` engines that are gone.
DELETE FROM engines AS e
 WHERE e.engine_id = ANY($1::text[]) AND NOT EXISTS (SELECT 1 FROM run_state AS r WHERE r.owner = e.engine_id);

-- name: list_engines
-- All of them, with whether they live by this database's clock.
SELECT engine_id, name, host, pid, process_start, expires_at > clock_timestamp() FROM engines ORDER BY engine_id;

-- name: find_claimable
-- Runs that should move, or rest and were asked something, and have no living owner. Oldest first, in pages that rows which cannot
-- be claimed do not hold up. `$2` owners known to be gone; `$3`, `$4` where the last page ended. Runs with commands are found by
-- leaps from run to run, so that many for one run cost no more than one; what is looked up for each stands behind OFFSET 0, which
-- is never turned into a join that reads all runs. Items for a run that was told to rest wait until it moves for another reason.
WITH RECURSIVE addressed (run_id) AS (
    (SELECT run_id FROM run_commands WHERE project_id = $1 AND taken_seq IS NULL ORDER BY run_id LIMIT 1)
     UNION ALL
    SELECT following.run_id
      FROM addressed
           CROSS JOIN LATERAL (SELECT run_id FROM run_commands
                                WHERE project_id = $1 AND taken_seq IS NULL AND run_id > addressed.run_id
                                ORDER BY run_id LIMIT 1) AS following
), candidates AS (
    SELECT run_id, owner, created_at
      FROM run_state
     WHERE project_id = $1 AND status IN ('created', 'running', 'pausing', 'recovering', 'failing', 'cancelling')
     UNION ALL
    SELECT r.run_id, r.owner, r.created_at
      FROM addressed
           CROSS JOIN LATERAL (SELECT run_id, owner, status, created_at FROM run_state
                                WHERE project_id = $1 AND run_id = addressed.run_id
                               OFFSET 0) AS r
     WHERE r.status IN ('suspended', 'awaiting_input')
        OR (SELECT true FROM run_commands AS c
             WHERE c.project_id = $1 AND c.run_id = r.run_id AND c.taken_seq IS NULL AND c.kind NOT IN ('send', 'close')
               AND (r.status IN ('paused', 'quarantined')
                    OR r.status IN ('completed', 'failed', 'cancelled') AND c.kind IN ('retry', 'jump', 'restore'))
             LIMIT 1)
)
SELECT run_id, owner, created_at
  FROM candidates
 WHERE (owner IS NULL OR owner = ANY($2::text[])
        OR NOT EXISTS (SELECT FROM engines AS e WHERE e.engine_id = owner AND e.expires_at > clock_timestamp()))
   AND ($3::bigint IS NULL OR (created_at, run_id) > ($3, $4::text))
 ORDER BY created_at, run_id LIMIT $5;

-- name: find_woken
-- Runs that rest and are to be woken, each with since when, and when the next one is. `$2` now, `$3` how many of each kind. Runs
-- with commands are found as in find_claimable, but only as far as is asked for; those whose time has come and the next one by the
-- index that holds no others. All other runs that rest are not read.
WITH RECURSIVE addressed (run_id) AS (
    (SELECT run_id FROM run_commands WHERE project_id = $1 AND taken_seq IS NULL ORDER BY run_id LIMIT 1)
     UNION ALL
    SELECT following.run_id
      FROM addressed
           CROSS JOIN LATERAL (SELECT run_id FROM run_commands
                                WHERE project_id = $1 AND taken_seq IS NULL AND run_id > addressed.run_id
                                ORDER BY run_id LIMIT 1) AS following
), told AS (
    SELECT r.run_id, (SELECT c.created_at FROM run_commands AS c
                       WHERE c.project_id = $1 AND c.run_id = r.run_id AND c.taken_seq IS NULL ORDER BY c.created_at LIMIT 1)
      FROM addressed
           CROSS JOIN LATERAL (SELECT run_id, owner, status FROM run_state
                                WHERE project_id = $1 AND run_id = addressed.run_id
                               OFFSET 0) AS r
     WHERE r.owner IS NULL
       AND (r.status IN ('suspended', 'awaiting_input')
            OR (SELECT true FROM run_commands AS c
                 WHERE c.project_id = $1 AND c.run_id = r.run_id AND c.taken_seq IS NULL AND c.kind NOT IN ('send', 'close')
                   AND (r.status IN ('paused', 'quarantined')
                        OR r.status IN ('completed', 'failed', 'cancelled') AND c.kind IN ('retry', 'jump', 'restore'))
                 LIMIT 1))
     LIMIT $3
), due AS (
    SELECT run_id, wake_at FROM run_state
     WHERE project_id = $1 AND wake_at <= $2 AND owner IS NULL AND status IN ('suspended', 'awaiting_input')
     ORDER BY wake_at, run_id LIMIT $3
)
SELECT * FROM told
 UNION ALL
SELECT * FROM due
 UNION ALL
SELECT NULL, (SELECT wake_at FROM run_state
               WHERE project_id = $1 AND wake_at > $2 AND owner IS NULL AND status IN ('suspended', 'awaiting_input')
               ORDER BY wake_at LIMIT 1);

-- name: list_open_waits
-- A page of what runs wait for, oldest first, by the index of what is open. `$2`, `$3` where the last page ended. The run is
-- looked up behind OFFSET 0, as in find_claimable.
SELECT w.run_id, r.workflow, w.branch_id, w.wait_id, w.node_id, w.kind, w.name, w.occurrence, w.status, w.question, w.signal,
       w.signal_id, w.due, w.result, w.responded_by, w.opened_at, w.settled_at, w.last_seq, r.status
  FROM run_waits AS w
       CROSS JOIN LATERAL (SELECT workflow, status FROM run_state AS r
                            WHERE r.project_id = $1 AND r.run_id = w.run_id AND r.branch_id = w.branch_id
                           OFFSET 0) AS r
 WHERE w.project_id = $1 AND w.status = 'open' AND (w.opened_at, w.wait_id) > ($2, $3)
 ORDER BY w.opened_at, w.wait_id LIMIT $4;

-- name: list_open_questions
-- As list_open_waits, of what people are asked: by an index of its own, because few of a million that wait may be questions.
-- One whose answer is there, and has yet to be taken up by whoever drives the run, is asked no more: looked up as the run is.
SELECT w.run_id, r.workflow, w.branch_id, w.wait_id, w.node_id, w.kind, w.name, w.occurrence, w.status, w.question, w.signal,
       w.signal_id, w.due, w.result, w.responded_by, w.opened_at, w.settled_at, w.last_seq, r.status
  FROM run_waits AS w
       CROSS JOIN LATERAL (SELECT workflow, status FROM run_state AS r
                            WHERE r.project_id = $1 AND r.run_id = w.run_id AND r.branch_id = w.branch_id
                           OFFSET 0) AS r
 WHERE w.project_id = $1 AND w.status = 'open' AND w.kind IN ('ask', 'suspend') AND (w.opened_at, w.wait_id) > ($2, $3)
   AND NOT EXISTS (SELECT 1 FROM run_commands AS c
                    WHERE c.project_id = w.project_id AND c.run_id = w.run_id AND c.command_id = 'answer/' || w.wait_id
                    OFFSET 0)
 ORDER BY w.opened_at, w.wait_id LIMIT $4;

-- name: list_waits
-- As list_open_waits, of whatever status (`$4`) and kinds (`$5` whether questions only). It reads all waits there are.
SELECT w.run_id, r.workflow, w.branch_id, w.wait_id, w.node_id, w.kind, w.name, w.occurrence, w.status, w.question, w.signal,
       w.signal_id, w.due, w.result, w.responded_by, w.opened_at, w.settled_at, w.last_seq, r.status
  FROM run_waits AS w
       CROSS JOIN LATERAL (SELECT workflow, status FROM run_state AS r
                            WHERE r.project_id = $1 AND r.run_id = w.run_id AND r.branch_id = w.branch_id
                           OFFSET 0) AS r
 WHERE w.project_id = $1 AND (w.opened_at, w.wait_id) > ($2, $3) AND ($4::text IS NULL OR w.status = $4)
   AND (NOT $5::boolean OR w.kind IN ('ask', 'suspend'))
   AND (NOT $5::boolean OR w.status <> 'open'
        OR NOT EXISTS (SELECT 1 FROM run_commands AS c
                         WHERE c.project_id = w.project_id AND c.run_id = w.run_id AND c.command_id = 'answer/' || w.wait_id
                         OFFSET 0))
 ORDER BY w.opened_at, w.wait_id LIMIT $6;

-- name: list_run_waits
-- As list_waits, of one run (`$6`).
SELECT w.run_id, r.workflow, w.branch_id, w.wait_id, w.node_id, w.kind, w.name, w.occurrence, w.status, w.question, w.signal,
       w.signal_id, w.due, w.result, w.responded_by, w.opened_at, w.settled_at, w.last_seq, r.status
  FROM run_state AS r
       CROSS JOIN LATERAL (SELECT * FROM run_waits
                            WHERE project_id = $1 AND run_id = r.run_id AND branch_id = r.branch_id
                           OFFSET 0) AS w
 WHERE r.project_id = $1 AND r.run_id = $6 AND (w.opened_at, w.wait_id) > ($2, $3) AND ($4::text IS NULL OR w.status = $4)
   AND (NOT $5::boolean OR w.kind IN ('ask', 'suspend'))
   AND (NOT $5::boolean OR w.status <> 'open'
        OR NOT EXISTS (SELECT 1 FROM run_commands AS c
                         WHERE c.project_id = w.project_id AND c.run_id = w.run_id AND c.command_id = 'answer/' || w.wait_id
                         OFFSET 0))
 ORDER BY w.opened_at, w.wait_id LIMIT $7;

-- name: load_wait
-- A wait by its id alone.
SELECT w.run_id, r.workflow, w.branch_id, w.wait_id, w.node_id, w.kind, w.name, w.occurrence, w.status, w.question, w.signal,
       w.signal_id, w.due, w.result, w.responded_by, w.opened_at, w.settled_at, w.last_seq, r.status
  FROM run_waits AS w
       CROSS JOIN LATERAL (SELECT workflow, status FROM run_state AS r
                            WHERE r.project_id = $1 AND r.run_id = w.run_id AND r.branch_id = w.branch_id
                           OFFSET 0) AS r
 WHERE w.project_id = $1 AND w.wait_id = $2;

-- name: list_branches
-- The lines of history of a run.
SELECT branch_id, parent_id, cut_seq, dropped, retried, given, reason, asked_as, created_at, created_seq, restored
  FROM run_branches WHERE project_id = $1 AND run_id = $2 ORDER BY branch_id;

-- name: list_checkpoints
-- A page of a run's checkpoints, in the order in which they were saved.
SELECT name, branch_id, seq, event_seq, periodic, asked_as, saved_at
  FROM run_checkpoints WHERE project_id = $1 AND run_id = $2 AND event_seq > $3 ORDER BY event_seq LIMIT $4;

-- name: load_checkpoint
-- What a name means.
SELECT name, branch_id, seq, event_seq, periodic, asked_as, saved_at
  FROM run_checkpoints WHERE project_id = $1 AND run_id = $2 AND name = $3;

-- name: last_checkpoint
-- The newest one, or the newest that was saved by itself (`$3`).
SELECT name, branch_id, seq, event_seq, periodic, asked_as, saved_at
  FROM run_checkpoints
 WHERE project_id = $1 AND run_id = $2 AND (NOT $3::boolean OR periodic > 0)
 ORDER BY event_seq DESC LIMIT 1;

-- name: past_runs
-- The runs of a version that have completed last, how long their nodes took, and what these waited for meanwhile: of that at most `$5`
-- of a run. Each run is looked up by itself, so that no plan can read others.
WITH chosen AS MATERIALIZED (
    SELECT run_id, branch_id, ended_at FROM run_state
     WHERE project_id = $1 AND workflow = $2 AND workflow_version = $3 AND status = 'completed'
     ORDER BY ended_at DESC, run_id DESC LIMIT $4
)
SELECT 'run', run_id, NULL::text, NULL::bigint, NULL::bigint, ended_at, NULL::bigint, NULL::text FROM chosen
UNION ALL
SELECT 'node', c.run_id, n.node_id, n.scheduled_at, n.started_at, n.ended_at, n.duration_ms, n.stream
  FROM chosen AS c
       CROSS JOIN LATERAL (SELECT node_id, scheduled_at, started_at, ended_at, duration_ms, stream FROM run_node_state
                            WHERE project_id = $1 AND run_id = c.run_id AND branch_id = c.branch_id AND status = 'completed'
                           OFFSET 0) AS n
UNION ALL
SELECT 'wait', c.run_id, w.node_id, NULL, w.opened_at, w.settled_at, NULL, w.kind
  FROM chosen AS c
       CROSS JOIN LATERAL (SELECT node_id, kind, opened_at, settled_at FROM run_waits
                            WHERE project_id = $1 AND run_id = c.run_id AND branch_id = c.branch_id AND settled_at IS NOT NULL
                            LIMIT $5) AS w;

-- name: append_logs
-- Best effort.
INSERT INTO run_logs (project_id, run_id, branch_id, node_id, attempt, logged_at, level, message, fields)
SELECT $1, l->>0, (l->>1)::bigint, l->>2, (l->>3)::bigint, (l->>4)::bigint, l->>5, l->>6, l->>7
  FROM jsonb_array_elements($2::jsonb) WITH ORDINALITY AS given (l, place)
 ORDER BY place;

-- name: load_logs
-- A page of a run's log lines.
SELECT log_id, run_id, branch_id, node_id, attempt, logged_at, level, message, fields
  FROM run_logs WHERE project_id = $1 AND run_id = $2 AND log_id > $3 ORDER BY log_id LIMIT $4;

-- name: tell_news
-- Wake who listens, from the connection that listens itself.
SELECT pg_notify('perdure_news', $1);

-- name: describe_server
-- What must be known before this database is trusted with anything.
SELECT current_setting('server_encoding'), current_setting('fsync'), current_setting('full_page_writes'), pg_is_in_recovery();

-- name: set_session
-- Every connection. A stronger synchronous_commit that the operator has chosen stays. Sequential and bitmap scans are never
-- right here, but look cheap to a plan that is made while tables are small and kept while they grow. Whatever the database's
-- default isolation is: who waited for a row must see what its last holder wrote. `$1` how long to wait for a lock, `$2` how plans are
-- kept, if that matters: what commits finds every row by its key, and planning it takes longer than doing it.
SELECT set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false),
       set_config('idle_in_transaction_session_timeout', '5s', false), set_config('lock_timeout', $1, false),
       set_config('statement_timeout', '15s', false), set_config('tcp_keepalives_idle', '30', false),
       set_config('tcp_keepalives_interval', '10', false), set_config('tcp_keepalives_count', '3', false),
       set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
       set_config('jit', 'off', false), set_config('default_transaction_isolation', 'read committed', false),
       set_config('plan_cache_mode', coalesce($2, current_setting('plan_cache_mode')), false);

-- name: check_session
-- A statement of its own: behind a pooler it may be answered by another session than the one that was set.
SELECT current_setting('synchronous_commit') IN ('on', 'remote_apply'),
       current_setting('idle_in_transaction_session_timeout') = '5s', current_setting('lock_timeout') = $1,
       current_setting('statement_timeout') = '15s',
       current_setting('default_transaction_isolation') = 'read committed';

-- name: set_news_session
-- The connection that only wakes others: nothing that it does has to survive.
SELECT set_config('synchronous_commit', 'off', false);

-- name: begin
-- A transaction on a connection that keeps its settings.
BEGIN ISOLATION LEVEL READ COMMITTED;

-- name: begin_pooled
-- A transaction behind a pooler, where settings last no longer than it does.
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true),
       set_config('idle_in_transaction_session_timeout', '5s', true), set_config('lock_timeout', '3s', true),
       set_config('statement_timeout', '15s', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true);

-- name: begin_pooled_commit
-- As begin_pooled, on the connection that all commits go through: what waits there for a lock makes all others wait.
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true),
       set_config('idle_in_transaction_session_timeout', '5s', true), set_config('lock_timeout', '200ms', true),
       set_config('statement_timeout', '15s', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true);

-- name: begin_migration
-- Whatever the default isolation is: who waited for the lock must see what its last holder wrote.
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL lock_timeout = '60s';
SET LOCAL statement_timeout = '60s';
SELECT pg_advisory_xact_lock(8102097219843124);

-- name: has_migrations
-- Whether anything was ever applied here.
SELECT to_regclass('schema_migrations') IS NOT NULL;

-- name: create_migrations
-- The record of what was applied.
CREATE TABLE IF NOT EXISTS schema_migrations (
    number     bigint PRIMARY KEY,
    name       text   NOT NULL,
    checksum   text   NOT NULL,
    applied_at bigint NOT NULL
);

-- name: load_migrations
-- What was applied.
SELECT number, checksum FROM schema_migrations;

-- name: record_migration
-- Written with the migration itself.
INSERT INTO schema_migrations (number, name, checksum, applied_at) VALUES ($1, $2, $3, $4);

-- name: begin_snapshot
-- One state of the database for all that is read, however many statements that takes.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL idle_in_transaction_session_timeout = '60s';

-- name: begin_whole
-- Writing a whole run takes as long as it is large.
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL idle_in_transaction_session_timeout = '60s';
SET LOCAL statement_timeout = '60s';

-- name: page_branches
-- For whole runs: the lines of history, page by page.
SELECT branch_id, parent_id, cut_seq, dropped, retried, given, reason, asked_as, created_at, created_seq,
       restored
  FROM run_branches WHERE project_id = $1 AND run_id = $2 AND branch_id > $3 ORDER BY branch_id LIMIT $4;

-- name: page_nodes
-- For whole runs: the nodes of every branch, page by page.
SELECT branch_id, node_id, status, attempt, attempt_ended, generation, failures, lost, outputs, error, checkpoint, reason,
       due, scheduled_at, started_at, ended_at, duration_ms, stream, last_seq
  FROM run_node_state WHERE project_id = $1 AND run_id = $2 AND (branch_id, node_id) > ($3, $4)
 ORDER BY branch_id, node_id LIMIT $5;

-- name: page_steps
-- For whole runs: the steps of every branch, page by page.
SELECT branch_id, node_id, name, occurrence, result, seq
  FROM run_steps WHERE project_id = $1 AND run_id = $2 AND (branch_id, node_id, name, occurrence) > ($3, $4, $5, $6)
 ORDER BY branch_id, node_id, name, occurrence LIMIT $7;

-- name: page_waits
-- For whole runs: the waits of every branch, page by page.
SELECT branch_id, wait_id, node_id, kind, name, occurrence, status, question, signal, signal_id, due, result, responded_by,
       opened_at, settled_at, last_seq
  FROM run_waits WHERE project_id = $1 AND run_id = $2 AND (branch_id, wait_id) > ($3, $4) ORDER BY branch_id, wait_id LIMIT $5;

-- name: page_signals
-- For whole runs: what has come, page by page.
SELECT signal_id, name, value, received_at, seq
  FROM run_signals WHERE project_id = $1 AND run_id = $2 AND seq > $3 ORDER BY seq LIMIT $4;

-- name: page_items
-- For whole runs: the entries of all streams, page by page.
SELECT branch_id, node_id, position, count, is_plain, seq, items
  FROM run_inbox_messages WHERE project_id = $1 AND run_id = $2 AND (branch_id, node_id, position) > ($3, $4, $5)
 ORDER BY branch_id, node_id, position LIMIT $6;

-- name: page_commands
-- For whole runs: what it was told, also what was taken up, page by page.
SELECT command_id, run_id, kind, payload, created_at, taken_seq
  FROM run_commands WHERE project_id = $1 AND run_id = $2 AND command_id > $3 ORDER BY command_id LIMIT $4;

-- name: page_blobs
-- For whole runs: which blobs it refers to, page by page.
SELECT digest, size FROM blobs WHERE project_id = $1 AND run_id = $2 AND digest > $3 ORDER BY digest LIMIT $4;

-- name: version_by_number
-- Whether a number is taken, for a version that comes from elsewhere.
SELECT graph_hash FROM workflow_versions WHERE project_id = $1 AND workflow = $2 AND version = $3;

-- name: keep_version
-- A version that comes from elsewhere and keeps its number.
INSERT INTO workflow_versions (project_id, workflow, version, graph_hash, graph, source, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING;

-- name: keep_run
-- A run that comes from elsewhere, without an owner; one that is there already changes nothing. As `created` in commit_group.
INSERT INTO run_state (project_id, run_id, owner, lease_epoch, version, workflow, workflow_version, graph_hash, status,
                       branch_id, last_seq, inputs, settings, source, outputs, error, failed_node, reason, recoveries,
                       wake_at, created_at, started_at, ended_at, audit)
SELECT $1, c->>0, c->>1, (c->>2)::bigint, 1, c->>3, (c->>4)::bigint, c->>5, c->>6, (c->>7)::bigint, (c->>8)::bigint, c->>9,
       c->>10, c->>11, c->>12, c->>13, c->>14, c->>15, (c->>16)::bigint, (c->>17)::bigint, (c->>18)::bigint, (c->>19)::bigint,
       (c->>20)::bigint, c->>21
  FROM jsonb_array_elements($2::jsonb) AS c
 WHERE NOT EXISTS (SELECT FROM run_archives AS a WHERE a.project_id = $1 AND a.run_id = c->>0)
ON CONFLICT (project_id, run_id) DO NOTHING
RETURNING run_id;

-- name: keep_branches
-- Lines of history of a run that comes from elsewhere.
INSERT INTO run_branches (project_id, run_id, branch_id, parent_id, cut_seq, dropped, retried, given, reason, asked_as,
                          created_at, created_seq, restored)
SELECT $1, b->>0, (b->>1)::bigint, (b->>2)::bigint, (b->>3)::bigint, b->>4, b->>5, b->>6, b->>7, b->>8, (b->>9)::bigint,
       (b->>10)::bigint, (b->>11)::bigint
  FROM jsonb_array_elements($2::jsonb) AS b;

-- name: keep_events
-- The log of a run that comes from elsewhere.
INSERT INTO run_events (project_id, run_id, seq, id, branch_id, epoch, event_type, event_time, node_id, payload)
SELECT $1, e->>0, (e->>1)::bigint, e->>2, (e->>3)::bigint, (e->>4)::bigint, e->>5, (e->>6)::bigint, e->>7, e->>8
  FROM jsonb_array_elements($2::jsonb) AS e;

-- name: keep_nodes
-- The nodes of a run that comes from elsewhere.
INSERT INTO run_node_state (project_id, run_id, branch_id, node_id, status, attempt, attempt_ended, generation, failures, lost,
                            outputs, error, checkpoint, reason, due, scheduled_at, started_at, ended_at, duration_ms, stream,
                            last_seq)
SELECT $1, n->>0, (n->>1)::bigint, n->>2, n->>3, (n->>4)::bigint, (n->>5)::bigint, (n->>6)::bigint, (n->>7)::bigint,
       (n->>8)::bigint, n->>9, n->>10, n->>11, n->>12, (n->>13)::bigint, (n->>14)::bigint, (n->>15)::bigint, (n->>16)::bigint,
       (n->>17)::bigint, n->>18, (n->>19)::bigint
  FROM jsonb_array_elements($2::jsonb) AS n;

-- name: keep_steps
-- The steps of a run that comes from elsewhere.
INSERT INTO run_steps (project_id, run_id, branch_id, node_id, name, occurrence, result, seq)
SELECT $1, s->>0, (s->>1)::bigint, s->>2, s->>3, (s->>4)::bigint, s->>5, (s->>6)::bigint
  FROM jsonb_array_elements($2::jsonb) AS s;

-- name: keep_waits
-- The waits of a run that comes from elsewhere.
INSERT INTO run_waits (project_id, run_id, branch_id, wait_id, node_id, kind, name, occurrence, status, question, signal,
                       signal_id, due, result, responded_by, opened_at, settled_at, last_seq)
SELECT $1, w->>0, (w->>1)::bigint, w->>2, w->>3, w->>4, w->>5, (w->>6)::bigint, w->>7, w->>8, w->>9, w->>10, (w->>11)::bigint,
       w->>12, w->>13, (w->>14)::bigint, (w->>15)::bigint, (w->>16)::bigint
  FROM jsonb_array_elements($2::jsonb) AS w;

-- name: keep_signals
-- What has come for a run that comes from elsewhere.
INSERT INTO run_signals (project_id, run_id, signal_id, name, value, received_at, seq)
SELECT $1, s->>0, s->>1, s->>2, s->>3, (s->>4)::bigint, (s->>5)::bigint FROM jsonb_array_elements($2::jsonb) AS s;

-- name: keep_checkpoints
-- The checkpoints of a run that comes from elsewhere.
INSERT INTO run_checkpoints (project_id, run_id, name, branch_id, seq, event_seq, periodic, asked_as, saved_at)
SELECT $1, c->>0, c->>1, (c->>2)::bigint, (c->>3)::bigint, (c->>4)::bigint, (c->>5)::bigint, c->>6, (c->>7)::bigint
  FROM jsonb_array_elements($2::jsonb) AS c;

-- name: keep_items
-- The entries of streams of a run that comes from elsewhere.
INSERT INTO run_inbox_messages (project_id, run_id, branch_id, node_id, position, count, is_plain, seq, items)
SELECT $1, i->>0, (i->>1)::bigint, i->>2, (i->>3)::bigint, (i->>4)::bigint, (i->>5)::bigint, (i->>6)::bigint, i->>7
  FROM jsonb_array_elements($2::jsonb) AS i;

-- name: keep_commands
-- What a run that comes from elsewhere was told.
INSERT INTO run_commands (project_id, command_id, run_id, kind, payload, created_at, taken_seq)
SELECT $1, c->>0, c->>1, c->>2, c->>3, (c->>4)::bigint, (c->>5)::bigint FROM jsonb_array_elements($2::jsonb) AS c;

-- name: keep_blobs
-- Which blobs a run that comes from elsewhere refers to.
INSERT INTO blobs (project_id, run_id, digest, size)
SELECT $1, b->>0, b->>1, (b->>2)::bigint FROM jsonb_array_elements($2::jsonb) AS b;

-- name: find_archivable
-- A page of runs that have ended before a moment, oldest first, by their age: few that are old have not ended. Not one that is about to
-- go on. `$2` the moment, `$3`, `$4` where the last page ended.
SELECT r.run_id, r.created_at, r.last_seq
  FROM run_state AS r
 WHERE r.project_id = $1 AND (r.created_at, r.run_id) > ($3, $4) AND r.created_at < $2 AND r.ended_at < $2
   AND r.status IN ('completed', 'failed', 'cancelled') AND r.owner IS NULL
   AND NOT EXISTS (SELECT FROM run_commands AS c
                    WHERE c.project_id = r.project_id AND c.run_id = r.run_id AND c.taken_seq IS NULL
                      AND c.kind IN ('retry', 'jump', 'restore'))
 ORDER BY r.created_at, r.run_id LIMIT $5;

-- name: lock_archivable
-- Of these runs, those that are as they were when they were written into a file. Nobody can tell them anything from here on.
SELECT r.run_id
  FROM unnest($2::text[], $3::bigint[]) AS asked (run_id, last_seq)
  JOIN run_state AS r ON r.project_id = $1 AND r.run_id = asked.run_id AND r.last_seq = asked.last_seq
 WHERE r.status IN ('completed', 'failed', 'cancelled') AND r.owner IS NULL
 ORDER BY r.run_id
   FOR UPDATE OF r SKIP LOCKED;

-- name: wanted_again
-- Of these runs, those that somebody wants to go on. A statement of its own: it sees what was told before the lock.
SELECT run_id FROM run_commands
 WHERE project_id = $1 AND run_id = ANY ($2::text[]) AND taken_seq IS NULL AND kind IN ('retry', 'jump', 'restore');

-- name: remove_parts
-- All that belongs to runs that are locked.
WITH events AS (DELETE FROM run_events WHERE project_id = $1 AND run_id = ANY ($2::text[])),
     segments AS (DELETE FROM run_log_segments WHERE project_id = $1 AND run_id = ANY ($2::text[])),
     nodes AS (DELETE FROM run_node_state WHERE project_id = $1 AND run_id = ANY ($2::text[])),
     steps AS (DELETE FROM run_steps WHERE project_id = $1 AND run_id = ANY ($2::text[])),
     waits AS (DELETE FROM run_waits WHERE project_id = $1 AND run_id = ANY ($2::text[])),
     signals AS (DELETE FROM run_signals WHERE project_id = $1 AND run_id = ANY ($2::text[])),
     checkpoints AS (DELETE FROM run_checkpoints WHERE project_id = $1 AND run_id = ANY ($2::text[])),
     items AS (DELETE FROM run_inbox_messages WHERE project_id = $1 AND run_id = ANY ($2::text[])),
     commands AS (DELETE FROM run_commands WHERE project_id = $1 AND run_id = ANY ($2::text[])),
     uses AS (DELETE FROM blobs WHERE project_id = $1 AND run_id = ANY ($2::text[])),
     logs AS (DELETE FROM run_logs WHERE project_id = $1 AND run_id = ANY ($2::text[])),
     tags AS (DELETE FROM run_tags WHERE project_id = $1 AND run_id = ANY ($2::text[])),
     deletions AS (DELETE FROM run_deletions WHERE project_id = $1 AND run_id = ANY ($2::text[]))
DELETE FROM run_branches WHERE project_id = $1 AND run_id = ANY ($2::text[]);

-- name: add_archives
-- Runs are in a file from here on.
INSERT INTO run_archives (project_id, run_id, workflow, workflow_version, status, created_at, ended_at, last_seq, archived_at, file, position, size, digest, is_removed)
SELECT $1, a->>0, a->>1, (a->>2)::bigint, a->>3, (a->>4)::bigint, (a->>5)::bigint, (a->>6)::bigint, (a->>7)::bigint, a->>8,
       (a->>9)::bigint, (a->>10)::bigint, a->>11, 1
  FROM jsonb_array_elements($2::jsonb) AS a;

-- name: add_deletion
-- The values of a run were deleted.
INSERT INTO run_deletions (project_id, run_id, deleted_at) VALUES ($1, $2, $3);

-- name: load_deletion
-- When that was.
SELECT deleted_at FROM run_deletions WHERE project_id = $1 AND run_id = $2;

-- name: remove_states
-- The runs themselves, when nothing refers to them any more.
DELETE FROM run_state WHERE project_id = $1 AND run_id = ANY ($2::text[]);

-- name: forget_archive
-- A run comes back from where it is: not from where it was before it left once more.
DELETE FROM run_archives WHERE project_id = $1 AND run_id = $2 AND file = $3 AND position = $4;

-- name: load_archive
-- Where a run is.
SELECT run_id, workflow, workflow_version, status, created_at, ended_at, last_seq, archived_at, file, position, size, digest
  FROM run_archives WHERE project_id = $1 AND run_id = $2;

-- name: where_is
-- Where a run is at one moment: who looks into one place after the other misses one that goes the other way.
SELECT 'database' FROM run_state WHERE project_id = $1 AND run_id = $2
 UNION ALL
SELECT 'archive' FROM run_archives WHERE project_id = $1 AND run_id = $2;

-- name: list_archives
-- A page of what is in the archive, newest first.
SELECT run_id, workflow, workflow_version, status, created_at, ended_at, last_seq, archived_at, file, position, size, digest
  FROM run_archives
 WHERE project_id = $1 AND ($2::text IS NULL OR starts_with(run_id, $2))
   AND ($3::bigint IS NULL OR (created_at, run_id) < ($3, $4::text))
 ORDER BY created_at DESC, run_id DESC LIMIT $5;

-- name: archive_files
-- Which files hold runs.
SELECT DISTINCT file FROM run_archives WHERE project_id = $1;

-- name: keep_tags
-- The tags of a run that comes from elsewhere.
INSERT INTO run_tags (project_id, run_id, tag) SELECT $1, t->>0, t->>1 FROM jsonb_array_elements($2::jsonb) AS t;
