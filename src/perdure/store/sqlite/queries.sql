-- name: create_run
-- The first transition of a run; a run id that is there already, or in the archive, changes nothing.
INSERT INTO run_state (project_id, run_id, owner, lease_epoch, version, workflow, workflow_version, graph_hash, status,
                       branch_id, last_seq, inputs, settings, source, outputs, error, failed_node, reason, recoveries,
                       wake_at, created_at, started_at, ended_at, audit)
SELECT ?1, ?2, ?3, ?4, 1, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23
 WHERE NOT EXISTS (SELECT 1 FROM run_archives WHERE project_id = ?1 AND run_id = ?2)
ON CONFLICT (project_id, run_id) DO NOTHING
RETURNING run_id;

-- name: create_root_branch
-- Every run has its first line of history.
INSERT INTO run_branches (project_id, run_id, branch_id, parent_id, cut_seq, dropped, created_seq)
VALUES (?, ?, ?, NULL, NULL, '[]', 1);

-- name: create_branches
-- Lines of history that a run goes on on.
INSERT INTO run_branches (project_id, run_id, branch_id, parent_id, cut_seq, dropped, retried, given, reason, asked_as,
                          created_at, created_seq, restored)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: last_branch
-- The largest number that a line of history of a run has.
SELECT coalesce(max(branch_id), 1) FROM run_branches WHERE project_id = ? AND run_id = ?;

-- name: list_branches
-- The lines of history of a run, or one of them.
SELECT branch_id, parent_id, cut_seq, dropped, retried, given, reason, asked_as, created_at, created_seq, restored
  FROM run_branches WHERE project_id = ?1 AND run_id = ?2 AND (?3 IS NULL OR branch_id = ?3) ORDER BY branch_id;

-- name: advance_run
-- Fence, lock and number at once: only where epoch and last_seq are still what the engine saw.
UPDATE run_state
   SET last_seq = ?, version = version + 1, lease_epoch = ?, owner = CASE WHEN ? THEN NULL ELSE owner END, status = ?,
       branch_id = ?, outputs = ?, error = ?, failed_node = ?, reason = ?, recoveries = ?, wake_at = ?, started_at = ?,
       ended_at = ?, audit = ?
 WHERE project_id = ? AND run_id = ? AND lease_epoch = ? AND last_seq = ?
RETURNING run_id;

-- name: step_run
-- As advance_run, where nothing but the numbers changes: no index is touched, which saves a third of the pages of a commit.
UPDATE run_state SET last_seq = ?, version = version + 1
 WHERE project_id = ? AND run_id = ? AND lease_epoch = ? AND last_seq = ?
RETURNING run_id;

-- name: claim_run
-- As advance_run, and only where nobody living owns the run: the row count decides.
UPDATE run_state
   SET last_seq = ?, version = version + 1, lease_epoch = ?, owner = ?, status = ?,
       branch_id = ?, outputs = ?, error = ?, failed_node = ?, reason = ?, recoveries = ?, wake_at = ?, started_at = ?,
       ended_at = ?, audit = ?
 WHERE project_id = ? AND run_id = ? AND lease_epoch = ? AND last_seq = ?
   AND (owner IS NULL OR owner = ?
        OR NOT EXISTS (SELECT 1 FROM engines AS e WHERE e.engine_id = owner AND e.boot_id = ? AND e.expires_at > ?))
RETURNING run_id;

-- name: pin_run
-- A run that goes on with another version.
UPDATE run_state SET workflow_version = ?, graph_hash = ? WHERE project_id = ? AND run_id = ?;

-- name: event_id_at
-- Whether a transition that was refused is the very one that was written before its answer was lost.
SELECT id FROM run_events WHERE project_id = ? AND run_id = ? AND seq = ?;

-- name: audit_of_run
-- As event_id_at, of a run whose log is written on the side.
SELECT audit FROM run_state WHERE project_id = ? AND run_id = ?;

-- name: append_audited
-- An event of a run whose log is written on the side, unless it is there, its run is gone, is another one of that id (`?11`) or was
-- written whole since (`?12`), its values were deleted, or its place was made compact.
INSERT INTO run_events (project_id, run_id, seq, id, branch_id, epoch, event_type, event_time, node_id, payload)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10
 WHERE EXISTS (SELECT 1 FROM run_state
                WHERE project_id = ?1 AND run_id = ?2 AND created_at = ?11 AND audit IS NOT NULL AND last_seq >= ?3
                  AND coalesce(audit ->> 'arrival', '') = ?12)
   AND NOT EXISTS (SELECT 1 FROM run_deletions WHERE project_id = ?1 AND run_id = ?2)
   AND NOT EXISTS (SELECT 1 FROM run_log_segments WHERE project_id = ?1 AND run_id = ?2 AND last_seq >= ?3)
ON CONFLICT (project_id, run_id, seq) DO NOTHING;

-- name: count_events
-- How many events are rows, up to one of them.
SELECT count(*) FROM run_events WHERE project_id = ? AND run_id = ? AND seq <= ?;

-- name: append_events
-- The log.
INSERT INTO run_events (project_id, run_id, seq, id, branch_id, epoch, event_type, event_time, node_id, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: put_nodes
-- Nodes as they stand after the transition. Every column is given, so replacing the row is the same as changing it, and costs
-- half: nothing is read before it is written.
INSERT OR REPLACE INTO run_node_state
       (project_id, run_id, branch_id, node_id, status, attempt, attempt_ended, generation, failures, lost, outputs, error,
        checkpoint, reason, due, scheduled_at, started_at, ended_at, duration_ms, stream, last_seq)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: drop_steps
-- Steps that their node has left behind. Before put_steps: the same names may come again.
DELETE FROM run_steps WHERE project_id = ? AND run_id = ? AND branch_id = ? AND node_id = ?;

-- name: put_steps
-- Results of memoised steps.
INSERT INTO run_steps (project_id, run_id, branch_id, node_id, name, occurrence, result, seq)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: drop_items
-- A stream whose entries nobody needs any more. Before put_items.
DELETE FROM run_inbox_messages WHERE project_id = ? AND run_id = ? AND branch_id = ? AND node_id = ? AND position >= ?;

-- name: put_items
-- Entries of streams, written with the events that record them.
INSERT INTO run_inbox_messages (project_id, run_id, branch_id, node_id, position, count, is_plain, seq, items)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: put_waits
-- What nodes wait for, as it stands after the transition.
INSERT INTO run_waits (project_id, run_id, branch_id, wait_id, node_id, kind, name, occurrence, status, question, signal,
                       signal_id, due, result, responded_by, opened_at, settled_at, last_seq)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (project_id, run_id, branch_id, wait_id) DO UPDATE SET
    node_id = excluded.node_id, kind = excluded.kind, name = excluded.name, occurrence = excluded.occurrence,
    status = excluded.status, question = excluded.question, signal = excluded.signal, signal_id = excluded.signal_id,
    due = excluded.due, result = excluded.result, responded_by = excluded.responded_by, opened_at = excluded.opened_at,
    settled_at = excluded.settled_at, last_seq = excluded.last_seq;

-- name: put_signals
-- Signals that have come. Each comes once.
INSERT INTO run_signals (project_id, run_id, signal_id, name, value, received_at, seq) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: put_checkpoints
-- Names for places in the log. Each is given once.
INSERT INTO run_checkpoints (project_id, run_id, name, branch_id, seq, event_seq, periodic, asked_as, saved_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: use_blobs
-- References, written with the events that hold them.
INSERT INTO blobs (project_id, run_id, digest, size) VALUES (?, ?, ?, ?)
ON CONFLICT (project_id, digest, run_id) DO NOTHING;

-- name: take_commands
-- A command is taken up in the transition that applies it.
UPDATE run_commands SET taken_seq = ? WHERE project_id = ? AND run_id = ? AND command_id = ? AND taken_seq IS NULL;

-- name: version_by_hash
-- Saving the same graph again gives the version it has.
SELECT workflow, version, graph_hash, graph, source, created_at
  FROM workflow_versions WHERE project_id = ? AND workflow = ? AND graph_hash = ?;

-- name: insert_version
-- The next number of the name.
INSERT INTO workflow_versions (project_id, workflow, version, graph_hash, graph, source, created_at)
SELECT ?1, ?2, coalesce(max(version), 0) + 1, ?3, ?4, ?5, ?6 FROM workflow_versions WHERE project_id = ?1 AND workflow = ?2
RETURNING version;

-- name: load_version
-- The graph a run was started with.
SELECT workflow, version, graph_hash, graph, source, created_at
  FROM workflow_versions WHERE project_id = ? AND workflow = ? AND version = ?;

-- name: list_versions
-- What is saved, optionally of one name.
SELECT workflow, version, graph_hash, graph, source, created_at
  FROM workflow_versions WHERE project_id = ?1 AND (?2 IS NULL OR workflow = ?2) ORDER BY workflow, version;

-- name: why_kept
-- What keeps a version from being deleted: is_there, is_newest, is_aliased, is_used.
SELECT EXISTS (SELECT 1 FROM workflow_versions WHERE project_id = ?1 AND workflow = ?2 AND version = ?3),
       ?3 = (SELECT max(version) FROM workflow_versions WHERE project_id = ?1 AND workflow = ?2),
       EXISTS (SELECT 1 FROM workflow_aliases AS a, json_each(a.targets) AS t
                WHERE a.project_id = ?1 AND a.workflow = ?2 AND t.key = CAST(?3 AS TEXT)),
       EXISTS (SELECT 1 FROM run_state WHERE project_id = ?1 AND workflow = ?2 AND workflow_version = ?3);

-- name: delete_version
-- A version to which nothing refers.
DELETE FROM workflow_versions WHERE project_id = ? AND workflow = ? AND version = ?;

-- name: count_runs
-- How far a version has spread.
SELECT workflow_version, count(*) FROM run_state WHERE project_id = ? AND workflow = ? GROUP BY workflow_version;

-- name: known_versions
-- Which of the versions are there that an alias is to point at.
SELECT version FROM workflow_versions
 WHERE project_id = ? AND workflow = ? AND version IN (SELECT value FROM json_each(?));

-- name: move_alias
-- One row is the whole move. It has to follow the last one.
INSERT INTO workflow_alias_moves (project_id, workflow, alias, revision, targets, restores, moved_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7
 WHERE ?4 = 1 + coalesce((SELECT max(revision) FROM workflow_alias_moves
                           WHERE project_id = ?1 AND workflow = ?2 AND alias = ?3), 0);

-- name: load_alias
-- The last move of an alias, and the newest version.
SELECT (SELECT max(version) FROM workflow_versions WHERE project_id = ?1 AND workflow = ?2),
       m.workflow, m.alias, m.revision, m.targets, m.restores, m.moved_at
  FROM (SELECT 1) LEFT JOIN (SELECT * FROM workflow_alias_moves WHERE project_id = ?1 AND workflow = ?2 AND alias = ?3
                              ORDER BY revision DESC LIMIT 1) AS m ON TRUE;

-- name: list_aliases
-- Where aliases point, optionally of one workflow.
SELECT a.workflow, a.alias, a.revision, a.targets, NULL, a.moved_at
  FROM workflow_aliases AS a WHERE a.project_id = ?1 AND (?2 IS NULL OR a.workflow = ?2) ORDER BY a.workflow, a.alias;

-- name: list_alias_moves
-- Where an alias has pointed.
SELECT workflow, alias, revision, targets, restores, moved_at
  FROM workflow_alias_moves WHERE project_id = ? AND workflow = ? AND alias = ? ORDER BY revision;

-- name: load_run
-- The run's own row.
SELECT project_id, run_id, lease_epoch, workflow, workflow_version, graph_hash, status, branch_id, last_seq, inputs, settings,
       source, outputs, error, failed_node, reason, recoveries, wake_at, created_at, started_at, ended_at, audit, owner
  FROM run_state WHERE project_id = ? AND run_id = ?;

-- name: load_state
-- The run's own row, without its owner.
SELECT project_id, run_id, lease_epoch, workflow, workflow_version, graph_hash, status, branch_id, last_seq, inputs, settings,
       source, outputs, error, failed_node, reason, recoveries, wake_at, created_at, started_at, ended_at, audit
  FROM run_state WHERE project_id = ? AND run_id = ?;

-- name: size_of_run
-- How many events a run has, and how much was said to it that it has not taken up.
SELECT r.last_seq, (SELECT coalesce(sum(length(c.payload)), 0) FROM run_commands AS c
                     WHERE c.project_id = ?1 AND c.run_id = ?2 AND c.taken_seq IS NULL)
  FROM run_state AS r WHERE r.project_id = ?1 AND r.run_id = ?2;

-- name: load_nodes
-- The nodes of every branch, or of one.
SELECT branch_id, node_id, status, attempt, attempt_ended, generation, failures, lost, outputs, error, checkpoint, reason,
       due, scheduled_at, started_at, ended_at, duration_ms, stream, last_seq
  FROM run_node_state WHERE project_id = ?1 AND run_id = ?2 AND (?3 IS NULL OR branch_id = ?3);

-- name: load_steps
-- The memoised steps of a branch.
SELECT branch_id, node_id, name, occurrence, result, seq
  FROM run_steps WHERE project_id = ? AND run_id = ? AND branch_id = ?;

-- name: load_waits
-- What the nodes of every branch, or of one, wait for or have waited for.
SELECT branch_id, wait_id, node_id, kind, name, occurrence, status, question, signal, signal_id, due, result, responded_by,
       opened_at, settled_at, last_seq
  FROM run_waits WHERE project_id = ?1 AND run_id = ?2 AND (?3 IS NULL OR branch_id = ?3)
 ORDER BY last_seq, branch_id, wait_id;

-- name: load_signals
-- What has come for a run.
SELECT signal_id, name, value, received_at, seq FROM run_signals WHERE project_id = ? AND run_id = ? ORDER BY seq;

-- name: load_node
-- A node of the run's branch.
SELECT n.branch_id, n.node_id, n.status, n.attempt, n.attempt_ended, n.generation, n.failures, n.lost, n.outputs, n.error,
       n.checkpoint, n.reason, n.due, n.scheduled_at, n.started_at, n.ended_at, n.duration_ms, n.stream, n.last_seq
  FROM run_state AS r CROSS JOIN run_node_state AS n
    ON n.project_id = r.project_id AND n.run_id = r.run_id AND n.branch_id = r.branch_id
 WHERE r.project_id = ? AND r.run_id = ? AND n.node_id = ?;

-- name: load_commands
-- What waits for the run's owner: so many (`?3`) items for its inputs, and so many of all else, which they do not hide. -1 is all.
SELECT * FROM (
    SELECT command_id, run_id, kind, payload, created_at FROM run_commands
     WHERE project_id = ?1 AND run_id = ?2 AND taken_seq IS NULL AND kind IN ('send', 'close')
     ORDER BY created_at, command_id LIMIT ?3)
 UNION ALL
SELECT * FROM (
    SELECT command_id, run_id, kind, payload, created_at FROM run_commands
     WHERE project_id = ?1 AND run_id = ?2 AND taken_seq IS NULL AND kind NOT IN ('send', 'close')
     ORDER BY created_at, command_id LIMIT ?3)
 ORDER BY created_at, command_id;

-- name: latest_commands
-- A page of what waits for the run's owner, newest first. `?3`, `?4` where the last page ended.
SELECT command_id, run_id, kind, payload, created_at FROM run_commands
 WHERE project_id = ?1 AND run_id = ?2 AND taken_seq IS NULL
   AND created_at <= ?3 AND (created_at < ?3 OR command_id < ?4)
 ORDER BY created_at DESC, command_id DESC LIMIT ?5;

-- name: load_events
-- A page of the log.
SELECT seq, id, branch_id, epoch, event_time, payload
  FROM run_events WHERE project_id = ? AND run_id = ? AND seq > ? ORDER BY seq LIMIT ?;

-- name: next_segment
-- The older part of a long log: the next events that are not rows of their own any more.
SELECT events FROM run_log_segments WHERE project_id = ? AND run_id = ? AND last_seq > ? ORDER BY last_seq LIMIT 1;

-- name: list_segments
-- The older part of a long log, without what is in it.
SELECT first_seq, last_seq, first_epoch, last_epoch, first_time, last_time, reopens
  FROM run_log_segments WHERE project_id = ? AND run_id = ? ORDER BY last_seq;

-- name: dump_segments
-- The older part of a long log.
SELECT events FROM run_log_segments WHERE project_id = ? AND run_id = ? ORDER BY last_seq;

-- name: oldest_events
-- What the next segment is made of.
SELECT seq, id, branch_id, epoch, event_time, payload, event_type, node_id
  FROM run_events WHERE project_id = ? AND run_id = ? AND seq <= ? ORDER BY seq LIMIT ?;

-- name: drop_events
-- After put_segment: what is in it is not kept twice.
DELETE FROM run_events WHERE project_id = ? AND run_id = ? AND seq <= ?;

-- name: put_segment
-- Many events in a row.
INSERT INTO run_log_segments (project_id, run_id, last_seq, first_seq, first_epoch, last_epoch, first_time, last_time, reopens,
                              events)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: long_logs
-- Runs with more than so many (`?2`) events that are rows, or would be if none were missing, in the order of their ids. `?3` where
-- the last page ended.
SELECT run_id, last_seq, in_segments, is_audited
  FROM (SELECT r.run_id, r.last_seq, coalesce((SELECT max(s.last_seq) FROM run_log_segments AS s
                                                WHERE s.project_id = r.project_id AND s.run_id = r.run_id), 0) AS in_segments,
               r.audit IS NOT NULL AS is_audited
          FROM run_state AS r
         WHERE r.project_id = ?1 AND r.last_seq > ?2 AND r.run_id > ?3)
 WHERE last_seq - in_segments > ?2
 ORDER BY run_id LIMIT ?4;

-- name: load_tail
-- The end of the log, last event first: whether the run's row agrees with it.
SELECT seq, branch_id, epoch, event_type FROM run_events WHERE project_id = ? AND run_id = ? ORDER BY seq DESC LIMIT ?;

-- name: load_items_by_position
-- A page of a stream, as it was yielded.
SELECT branch_id, node_id, position, count, is_plain, seq, items
  FROM run_inbox_messages
 WHERE project_id = ? AND run_id = ? AND branch_id = ? AND node_id = ? AND position > ?
 ORDER BY position LIMIT ?;

-- name: load_items_by_seq
-- A page of a stream, as it was recorded.
SELECT branch_id, node_id, position, count, is_plain, seq, items
  FROM run_inbox_messages
 WHERE project_id = ? AND run_id = ? AND branch_id = ? AND node_id = ? AND (seq, position) > (?, ?)
 ORDER BY seq, position LIMIT ?;

-- name: load_ranges
-- Where the entries of a run's streams are.
SELECT branch_id, node_id, position, count, seq
  FROM run_inbox_messages WHERE project_id = ? AND run_id = ? ORDER BY branch_id, node_id, position;

-- name: dump_items
-- All entries of a run's streams.
SELECT branch_id, node_id, position, count, is_plain, seq, items
  FROM run_inbox_messages WHERE project_id = ? AND run_id = ? ORDER BY branch_id, node_id, position;

-- name: load_blob_uses
-- For verify and collection.
SELECT digest, size FROM blobs WHERE project_id = ? AND run_id = ? ORDER BY digest;

-- name: used_blobs
-- For collection: which of these (JSON) are referred to, in any project. The projects are found by leaps through the index:
-- there are few, and rows that are written all the time need no second index. What a command says is recorded when it is taken.
WITH RECURSIVE projects (id) AS (
    SELECT min(project_id) FROM blobs
     UNION ALL
    SELECT (SELECT min(project_id) FROM blobs WHERE project_id > id) FROM projects WHERE id IS NOT NULL
)
SELECT value FROM json_each(?1) AS wanted
 WHERE EXISTS (SELECT 1 FROM projects AS p JOIN blobs AS b ON b.project_id = p.id AND b.digest = wanted.value)
    OR EXISTS (SELECT 1 FROM run_commands WHERE taken_seq IS NULL AND instr(payload, wanted.value) > 0);

-- name: list_runs
-- A page of runs, newest first. Statuses come as a JSON list.
SELECT run_id, workflow, workflow_version, status, created_at, started_at, ended_at, owner, reason, wake_at,
       (SELECT deleted_at FROM run_deletions AS d WHERE d.project_id = run_state.project_id AND d.run_id = run_state.run_id),
       (SELECT json_group_array(tag) FROM run_tags AS t WHERE t.project_id = run_state.project_id AND t.run_id = run_state.run_id)
  FROM run_state
 WHERE project_id = ?1
   AND (?2 IS NULL OR status IN (SELECT value FROM json_each(?2)))
   AND (?3 IS NULL OR workflow = ?3)
   AND (?4 IS NULL OR substr(CAST(run_id AS BLOB), 1, length(CAST(?4 AS BLOB))) = CAST(?4 AS BLOB))
   AND (?5 IS NULL OR (created_at, run_id) < (?5, ?6))
 ORDER BY created_at DESC, run_id DESC LIMIT ?7;

-- name: list_tagged_runs
-- As list_runs, of those that have a tag (`?8`): found by it, because few may have it.
SELECT r.run_id, r.workflow, r.workflow_version, r.status, r.created_at, r.started_at, r.ended_at, r.owner, r.reason, r.wake_at,
       (SELECT deleted_at FROM run_deletions AS d WHERE d.project_id = r.project_id AND d.run_id = r.run_id),
       (SELECT json_group_array(tag) FROM run_tags AS t WHERE t.project_id = r.project_id AND t.run_id = r.run_id)
  FROM run_tags AS chosen CROSS JOIN run_state AS r ON r.project_id = chosen.project_id AND r.run_id = chosen.run_id
 WHERE chosen.project_id = ?1 AND chosen.tag = ?8
   AND (?2 IS NULL OR r.status IN (SELECT value FROM json_each(?2)))
   AND (?3 IS NULL OR r.workflow = ?3)
   AND (?4 IS NULL OR substr(CAST(r.run_id AS BLOB), 1, length(CAST(?4 AS BLOB))) = CAST(?4 AS BLOB))
   AND (?5 IS NULL OR (r.created_at, r.run_id) < (?5, ?6))
 ORDER BY r.created_at DESC, r.run_id DESC LIMIT ?7;

-- name: tag_run
-- A tag that a run has already changes nothing.
INSERT INTO run_tags (project_id, run_id, tag) VALUES (?, ?, ?) ON CONFLICT (project_id, run_id, tag) DO NOTHING;

-- name: untag_run
-- A tag that a run has not changes nothing.
DELETE FROM run_tags WHERE project_id = ? AND run_id = ? AND tag = ?;

-- name: page_tags
-- The tags of a run, page by page.
SELECT tag FROM run_tags WHERE project_id = ? AND run_id = ? AND tag > ? ORDER BY tag LIMIT ?;

-- name: add_command
-- Durable before it is acknowledged; the same id twice for a run has no effect. Later than all that wait, whatever the clocks say.
-- Not after `?7`, if there is such a command: there is one writer, so that either of the two is first.
INSERT INTO run_commands (project_id, run_id, command_id, kind, payload, created_at)
SELECT ?1, ?2, ?3, ?4, ?5, max(?6, coalesce(1 + (
    SELECT max(created_at) FROM run_commands WHERE project_id = ?1 AND run_id = ?2 AND taken_seq IS NULL), ?6))
 WHERE NOT EXISTS (SELECT 1 FROM run_commands WHERE project_id = ?1 AND run_id = ?2 AND command_id = ?7)
ON CONFLICT (project_id, run_id, command_id) DO NOTHING;

-- name: load_command
-- Whether a command whose id was there already is the same one.
SELECT command_id, run_id, kind, payload, created_at
  FROM run_commands WHERE project_id = ? AND run_id = ? AND command_id = ?;

-- name: withdraw_command
-- Nothing is to come of a command for a run that has ended, unless somebody wants that to go on.
DELETE FROM run_commands
 WHERE project_id = ?1 AND run_id = ?2 AND command_id = ?3 AND taken_seq IS NULL
   AND EXISTS (SELECT 1 FROM run_state AS r
                WHERE r.project_id = ?1 AND r.run_id = ?2 AND r.status IN ('completed', 'failed', 'cancelled') AND r.owner IS NULL)
   AND NOT EXISTS (SELECT 1 FROM run_commands AS c
                    WHERE c.project_id = ?1 AND c.run_id = ?2 AND c.taken_seq IS NULL AND c.kind IN ('retry', 'jump', 'restore'));

-- name: addressed_runs
-- Which runs of one engine have been asked to do something. They are found by leaps, as in find_claimable.
WITH RECURSIVE addressed (run_id) AS (
    SELECT min(run_id) FROM run_commands WHERE project_id = ?1 AND taken_seq IS NULL
     UNION ALL
    SELECT (SELECT min(c.run_id) FROM run_commands AS c
             WHERE c.project_id = ?1 AND c.taken_seq IS NULL AND c.run_id > addressed.run_id)
      FROM addressed WHERE addressed.run_id IS NOT NULL
)
SELECT r.run_id
  FROM addressed CROSS JOIN run_state AS r ON r.project_id = ?1 AND r.run_id = addressed.run_id
 WHERE r.owner = ?2;

-- name: register_engine
-- The engine's row. Its id is never used again, so a second time it is the same engine that did not hear the first answer.
INSERT INTO engines (engine_id, name, host, pid, process_start, boot_id, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (engine_id) DO UPDATE SET expires_at = excluded.expires_at;

-- name: renew_engine
-- Only one that has not expired may go on: no row, no life.
UPDATE engines SET expires_at = ?1 WHERE engine_id = ?2 AND boot_id = ?3 AND expires_at > ?4;

-- name: release_owned
-- A retiring engine lets go of what it still owns.
UPDATE run_state SET owner = NULL, version = version + 1 WHERE owner = ?;

-- name: delete_engine
-- A retired engine, or one that has long expired.
DELETE FROM engines WHERE engine_id = ?;

-- name: forget_engines
-- Rows that nobody needs any more; `?1` engines that are gone (JSON).
DELETE FROM engines
 WHERE engine_id IN (SELECT value FROM json_each(?1)) AND NOT EXISTS (SELECT 1 FROM run_state WHERE owner = engine_id);

-- name: list_engines
-- All of them, with whether they live by the host's clock.
SELECT engine_id, name, host, pid, process_start, boot_id = ?1 AND expires_at > ?2 FROM engines ORDER BY engine_id;

-- name: find_claimable
-- Runs that should move, or rest and were asked something, and have no living owner. Oldest first, in pages that rows which cannot
-- be claimed do not hold up. `?1` project, `?2` boot id, `?3` now, `?4` owners known to be gone (JSON), `?5`, `?6` last page. Runs
-- with commands are found by leaps from run to run, so that many for one run cost no more than one. Items for a run that was told
-- to rest wait until it moves for another reason.
WITH RECURSIVE addressed (run_id) AS (
    SELECT min(run_id) FROM run_commands WHERE project_id = ?1 AND taken_seq IS NULL
     UNION ALL
    SELECT (SELECT min(c.run_id) FROM run_commands AS c
             WHERE c.project_id = ?1 AND c.taken_seq IS NULL AND c.run_id > addressed.run_id)
      FROM addressed WHERE addressed.run_id IS NOT NULL
), candidates AS (
    SELECT run_id, owner, created_at
      FROM run_state INDEXED BY run_state_moving
     WHERE project_id = ?1 AND status IN ('created', 'running', 'pausing', 'recovering', 'failing', 'cancelling')
     UNION ALL
    SELECT r.run_id, r.owner, r.created_at
      FROM addressed CROSS JOIN run_state AS r ON r.project_id = ?1 AND r.run_id = addressed.run_id
     WHERE r.status IN ('suspended', 'awaiting_input')
        OR EXISTS (SELECT 1 FROM run_commands AS c
                    WHERE c.project_id = ?1 AND c.run_id = r.run_id AND c.taken_seq IS NULL AND c.kind NOT IN ('send', 'close')
                      AND (r.status IN ('paused', 'quarantined')
                           OR r.status IN ('completed', 'failed', 'cancelled') AND c.kind IN ('retry', 'jump', 'restore')))
)
SELECT run_id, owner, created_at
  FROM candidates
 WHERE (owner IS NULL OR owner IN (SELECT value FROM json_each(?4))
        OR NOT EXISTS (SELECT 1 FROM engines AS e WHERE e.engine_id = owner AND e.boot_id = ?2 AND e.expires_at > ?3))
   AND (?5 IS NULL OR (created_at, run_id) > (?5, ?6))
 ORDER BY created_at, run_id LIMIT ?7;

-- name: find_woken
-- Runs that rest and are to be woken, each with since when, and when the next one is. `?1` project, `?2` now, `?3` how many of
-- each kind. Runs with commands are found as in find_claimable, but only as far as is asked for; those whose time has come and the
-- next one by the index that holds no others. All other runs that rest are not read.
WITH RECURSIVE addressed (run_id) AS (
    SELECT min(run_id) FROM run_commands WHERE project_id = ?1 AND taken_seq IS NULL
     UNION ALL
    SELECT (SELECT min(c.run_id) FROM run_commands AS c
             WHERE c.project_id = ?1 AND c.taken_seq IS NULL AND c.run_id > addressed.run_id)
      FROM addressed WHERE addressed.run_id IS NOT NULL
), told AS (
    SELECT r.run_id, (SELECT min(c.created_at) FROM run_commands AS c
                       WHERE c.project_id = ?1 AND c.run_id = r.run_id AND c.taken_seq IS NULL)
      FROM addressed CROSS JOIN run_state AS r ON r.project_id = ?1 AND r.run_id = addressed.run_id
     WHERE r.owner IS NULL
       AND (r.status IN ('suspended', 'awaiting_input')
            OR EXISTS (SELECT 1 FROM run_commands AS c
                        WHERE c.project_id = ?1 AND c.run_id = r.run_id AND c.taken_seq IS NULL
                          AND c.kind NOT IN ('send', 'close')
                          AND (r.status IN ('paused', 'quarantined')
                               OR r.status IN ('completed', 'failed', 'cancelled') AND c.kind IN ('retry', 'jump', 'restore'))))
     LIMIT ?3
), due AS (
    SELECT run_id, wake_at FROM run_state
     WHERE project_id = ?1 AND wake_at <= ?2 AND owner IS NULL AND status IN ('suspended', 'awaiting_input')
     ORDER BY wake_at, run_id LIMIT ?3
)
SELECT * FROM told
 UNION ALL
SELECT * FROM due
 UNION ALL
SELECT NULL, (SELECT min(wake_at) FROM run_state
               WHERE project_id = ?1 AND wake_at > ?2 AND owner IS NULL AND status IN ('suspended', 'awaiting_input'));

-- name: list_open_waits
-- A page of what runs wait for, oldest first, by the index of what is open. `?2`, `?3` where the last page ended.
SELECT w.run_id, r.workflow, w.branch_id, w.wait_id, w.node_id, w.kind, w.name, w.occurrence, w.status, w.question, w.signal,
       w.signal_id, w.due, w.result, w.responded_by, w.opened_at, w.settled_at, w.last_seq, r.status
  FROM run_waits AS w CROSS JOIN run_state AS r
    ON r.project_id = w.project_id AND r.run_id = w.run_id AND r.branch_id = w.branch_id
 WHERE w.project_id = ?1 AND w.status = 'open' AND (w.opened_at, w.wait_id) > (?2, ?3)
 ORDER BY w.opened_at, w.wait_id LIMIT ?4;

-- name: list_open_questions
-- As list_open_waits, of what people are asked: by an index of its own, because few of a million that wait may be questions.
-- One whose answer is there, and has yet to be taken up by whoever drives the run, is asked no more.
SELECT w.run_id, r.workflow, w.branch_id, w.wait_id, w.node_id, w.kind, w.name, w.occurrence, w.status, w.question, w.signal,
       w.signal_id, w.due, w.result, w.responded_by, w.opened_at, w.settled_at, w.last_seq, r.status
  FROM run_waits AS w CROSS JOIN run_state AS r
    ON r.project_id = w.project_id AND r.run_id = w.run_id AND r.branch_id = w.branch_id
 WHERE w.project_id = ?1 AND w.status = 'open' AND w.kind IN ('ask', 'suspend') AND (w.opened_at, w.wait_id) > (?2, ?3)
   AND NOT EXISTS (SELECT 1 FROM run_commands AS c
                    WHERE c.project_id = w.project_id AND c.run_id = w.run_id AND c.command_id = 'answer/' || w.wait_id)
 ORDER BY w.opened_at, w.wait_id LIMIT ?4;

-- name: list_waits
-- As list_open_waits, of whatever status (`?4`) and kinds (`?5` whether questions only). It reads all waits there are.
SELECT w.run_id, r.workflow, w.branch_id, w.wait_id, w.node_id, w.kind, w.name, w.occurrence, w.status, w.question, w.signal,
       w.signal_id, w.due, w.result, w.responded_by, w.opened_at, w.settled_at, w.last_seq, r.status
  FROM run_waits AS w CROSS JOIN run_state AS r
    ON r.project_id = w.project_id AND r.run_id = w.run_id AND r.branch_id = w.branch_id
 WHERE w.project_id = ?1 AND (w.opened_at, w.wait_id) > (?2, ?3) AND (?4 IS NULL OR w.status = ?4)
   AND (NOT ?5 OR w.kind IN ('ask', 'suspend'))
   AND (NOT ?5 OR w.status <> 'open'
        OR NOT EXISTS (SELECT 1 FROM run_commands AS c
                         WHERE c.project_id = w.project_id AND c.run_id = w.run_id AND c.command_id = 'answer/' || w.wait_id))
 ORDER BY w.opened_at, w.wait_id LIMIT ?6;

-- name: list_run_waits
-- As list_waits, of one run (`?6`).
SELECT w.run_id, r.workflow, w.branch_id, w.wait_id, w.node_id, w.kind, w.name, w.occurrence, w.status, w.question, w.signal,
       w.signal_id, w.due, w.result, w.responded_by, w.opened_at, w.settled_at, w.last_seq, r.status
  FROM run_state AS r CROSS JOIN run_waits AS w
    ON w.project_id = r.project_id AND w.run_id = r.run_id AND w.branch_id = r.branch_id
 WHERE r.project_id = ?1 AND r.run_id = ?6 AND (w.opened_at, w.wait_id) > (?2, ?3) AND (?4 IS NULL OR w.status = ?4)
   AND (NOT ?5 OR w.kind IN ('ask', 'suspend'))
   AND (NOT ?5 OR w.status <> 'open'
        OR NOT EXISTS (SELECT 1 FROM run_commands AS c
                         WHERE c.project_id = w.project_id AND c.run_id = w.run_id AND c.command_id = 'answer/' || w.wait_id))
 ORDER BY w.opened_at, w.wait_id LIMIT ?7;

-- name: load_wait
-- A wait by its id alone.
SELECT w.run_id, r.workflow, w.branch_id, w.wait_id, w.node_id, w.kind, w.name, w.occurrence, w.status, w.question, w.signal,
       w.signal_id, w.due, w.result, w.responded_by, w.opened_at, w.settled_at, w.last_seq, r.status
  FROM run_waits AS w CROSS JOIN run_state AS r
    ON r.project_id = w.project_id AND r.run_id = w.run_id AND r.branch_id = w.branch_id
 WHERE w.project_id = ? AND w.wait_id = ?;

-- name: list_checkpoints
-- A page of a run's checkpoints, in the order in which they were saved.
SELECT name, branch_id, seq, event_seq, periodic, asked_as, saved_at
  FROM run_checkpoints WHERE project_id = ? AND run_id = ? AND event_seq > ? ORDER BY event_seq LIMIT ?;

-- name: load_checkpoint
-- What a name means.
SELECT name, branch_id, seq, event_seq, periodic, asked_as, saved_at
  FROM run_checkpoints WHERE project_id = ? AND run_id = ? AND name = ?;

-- name: last_checkpoint
-- The newest one, or the newest that was saved by itself (`?3`).
SELECT name, branch_id, seq, event_seq, periodic, asked_as, saved_at
  FROM run_checkpoints WHERE project_id = ?1 AND run_id = ?2 AND (NOT ?3 OR periodic > 0) ORDER BY event_seq DESC LIMIT 1;

-- name: past_runs
-- The runs of a version that have completed last.
SELECT run_id, branch_id FROM run_state
 WHERE project_id = ? AND workflow = ? AND workflow_version = ? AND status = 'completed'
 ORDER BY ended_at DESC, run_id DESC LIMIT ?;

-- name: past_nodes
-- How long the nodes of such a run took.
SELECT node_id, scheduled_at, started_at, ended_at, duration_ms, stream FROM run_node_state
 WHERE project_id = ? AND run_id = ? AND branch_id = ? AND status = 'completed';

-- name: past_waits
-- What they waited for meanwhile, so much of it as is asked for.
SELECT node_id, kind, opened_at, settled_at FROM run_waits
 WHERE project_id = ? AND run_id = ? AND branch_id = ? AND settled_at IS NOT NULL LIMIT ?;

-- name: append_logs
-- Best effort.
INSERT INTO run_logs (project_id, run_id, branch_id, node_id, attempt, logged_at, level, message, fields)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: load_logs
-- A page of a run's log lines.
SELECT log_id, run_id, branch_id, node_id, attempt, logged_at, level, message, fields
  FROM run_logs WHERE project_id = ? AND run_id = ? AND log_id > ? ORDER BY log_id LIMIT ?;

-- name: page_branches
-- For whole runs: the lines of history, page by page.
SELECT branch_id, parent_id, cut_seq, dropped, retried, given, reason, asked_as, created_at, created_seq,
       restored
  FROM run_branches WHERE project_id = ? AND run_id = ? AND branch_id > ? ORDER BY branch_id LIMIT ?;

-- name: page_nodes
-- For whole runs: the nodes of every branch, page by page.
SELECT branch_id, node_id, status, attempt, attempt_ended, generation, failures, lost, outputs, error, checkpoint, reason,
       due, scheduled_at, started_at, ended_at, duration_ms, stream, last_seq
  FROM run_node_state WHERE project_id = ? AND run_id = ? AND (branch_id, node_id) > (?, ?)
 ORDER BY branch_id, node_id LIMIT ?;

-- name: page_steps
-- For whole runs: the steps of every branch, page by page.
SELECT branch_id, node_id, name, occurrence, result, seq
  FROM run_steps WHERE project_id = ? AND run_id = ? AND (branch_id, node_id, name, occurrence) > (?, ?, ?, ?)
 ORDER BY branch_id, node_id, name, occurrence LIMIT ?;

-- name: page_waits
-- For whole runs: the waits of every branch, page by page.
SELECT branch_id, wait_id, node_id, kind, name, occurrence, status, question, signal, signal_id, due, result, responded_by,
       opened_at, settled_at, last_seq
  FROM run_waits WHERE project_id = ? AND run_id = ? AND (branch_id, wait_id) > (?, ?) ORDER BY branch_id, wait_id LIMIT ?;

-- name: page_signals
-- For whole runs: what has come, page by page.
SELECT signal_id, name, value, received_at, seq
  FROM run_signals WHERE project_id = ? AND run_id = ? AND seq > ? ORDER BY seq LIMIT ?;

-- name: page_items
-- For whole runs: the entries of all streams, page by page.
SELECT branch_id, node_id, position, count, is_plain, seq, items
  FROM run_inbox_messages WHERE project_id = ? AND run_id = ? AND (branch_id, node_id, position) > (?, ?, ?)
 ORDER BY branch_id, node_id, position LIMIT ?;

-- name: page_commands
-- For whole runs: what it was told, also what was taken up, page by page.
SELECT command_id, run_id, kind, payload, created_at, taken_seq
  FROM run_commands WHERE project_id = ? AND run_id = ? AND command_id > ? ORDER BY command_id LIMIT ?;

-- name: page_blobs
-- For whole runs: which blobs it refers to, page by page.
SELECT digest, size FROM blobs WHERE project_id = ? AND run_id = ? AND digest > ? ORDER BY digest LIMIT ?;

-- name: version_by_number
-- Whether a number is taken, for a version that comes from elsewhere.
SELECT graph_hash FROM workflow_versions WHERE project_id = ? AND workflow = ? AND version = ?;

-- name: keep_version
-- A version that comes from elsewhere and keeps its number.
INSERT INTO workflow_versions (project_id, workflow, version, graph_hash, graph, source, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: keep_commands
-- What a run that comes from elsewhere was told.
INSERT INTO run_commands (project_id, command_id, run_id, kind, payload, created_at, taken_seq) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: find_archivable
-- A page of runs that have ended before a moment, oldest first, by their age: few that are old have not ended. Not one that is about to
-- go on. `?2` the moment, `?3`, `?4` where the last page ended.
SELECT r.run_id, r.created_at, r.last_seq
  FROM run_state AS r INDEXED BY run_state_by_age
 WHERE r.project_id = ?1 AND (r.created_at, r.run_id) > (?3, ?4) AND r.created_at < ?2 AND r.ended_at < ?2
   AND r.status IN ('completed', 'failed', 'cancelled') AND r.owner IS NULL
   AND NOT EXISTS (SELECT 1 FROM run_commands AS c
                    WHERE c.project_id = r.project_id AND c.run_id = r.run_id AND c.taken_seq IS NULL
                      AND c.kind IN ('retry', 'jump', 'restore'))
 ORDER BY r.created_at, r.run_id LIMIT ?5;

-- name: is_archivable
-- Whether a run is as it was when it was written into a file, and nobody wants it to go on. Once more, where nobody else writes.
SELECT 1 FROM run_state AS r
 WHERE r.project_id = ?1 AND r.run_id = ?2 AND r.last_seq = ?3 AND r.status IN ('completed', 'failed', 'cancelled')
   AND r.owner IS NULL
   AND NOT EXISTS (SELECT 1 FROM run_commands AS c
                    WHERE c.project_id = r.project_id AND c.run_id = r.run_id AND c.taken_seq IS NULL
                      AND c.kind IN ('retry', 'jump', 'restore'));

-- name: add_archive
-- A run is in a file from here on.
INSERT INTO run_archives (project_id, run_id, workflow, workflow_version, status, created_at, ended_at, last_seq, archived_at, file, position, size, digest, is_removed)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0);

-- name: remove_state
-- The run itself. What belongs to it goes with it or after it: whoever does this looks after that himself, without foreign keys.
DELETE FROM run_state WHERE project_id = ? AND run_id = ?;

-- name: remove_events
-- So many (`?3`) of what belongs to a run, as in the next ones; -1 is all.
DELETE FROM run_events WHERE project_id = ?1 AND run_id = ?2 AND seq IN (
    SELECT seq FROM run_events WHERE project_id = ?1 AND run_id = ?2 LIMIT ?3);

-- name: remove_segments
DELETE FROM run_log_segments
 WHERE rowid IN (SELECT rowid FROM run_log_segments WHERE project_id = ?1 AND run_id = ?2 LIMIT ?3);

-- name: remove_nodes
DELETE FROM run_node_state WHERE project_id = ?1 AND run_id = ?2 AND (branch_id, node_id) IN (
    SELECT branch_id, node_id FROM run_node_state WHERE project_id = ?1 AND run_id = ?2 LIMIT ?3);

-- name: remove_steps
DELETE FROM run_steps WHERE project_id = ?1 AND run_id = ?2 AND (branch_id, node_id, name, occurrence) IN (
    SELECT branch_id, node_id, name, occurrence FROM run_steps WHERE project_id = ?1 AND run_id = ?2 LIMIT ?3);

-- name: remove_waits
DELETE FROM run_waits WHERE rowid IN (SELECT rowid FROM run_waits WHERE project_id = ?1 AND run_id = ?2 LIMIT ?3);

-- name: remove_signals
DELETE FROM run_signals WHERE rowid IN (SELECT rowid FROM run_signals WHERE project_id = ?1 AND run_id = ?2 LIMIT ?3);

-- name: remove_checkpoints
DELETE FROM run_checkpoints WHERE project_id = ?1 AND run_id = ?2 AND name IN (
    SELECT name FROM run_checkpoints WHERE project_id = ?1 AND run_id = ?2 LIMIT ?3);

-- name: remove_items
DELETE FROM run_inbox_messages
 WHERE rowid IN (SELECT rowid FROM run_inbox_messages WHERE project_id = ?1 AND run_id = ?2 LIMIT ?3);

-- name: remove_commands
DELETE FROM run_commands WHERE rowid IN (SELECT rowid FROM run_commands WHERE project_id = ?1 AND run_id = ?2 LIMIT ?3);

-- name: remove_blob_uses
DELETE FROM blobs WHERE project_id = ?1 AND run_id = ?2 AND digest IN (
    SELECT digest FROM blobs WHERE project_id = ?1 AND run_id = ?2 LIMIT ?3);

-- name: remove_logs
DELETE FROM run_logs WHERE log_id IN (SELECT log_id FROM run_logs WHERE project_id = ?1 AND run_id = ?2 LIMIT ?3);

-- name: remove_branches
DELETE FROM run_branches WHERE project_id = ?1 AND run_id = ?2 AND branch_id IN (
    SELECT branch_id FROM run_branches WHERE project_id = ?1 AND run_id = ?2 LIMIT ?3);

-- name: remove_tags
DELETE FROM run_tags WHERE project_id = ?1 AND run_id = ?2 AND tag IN (
    SELECT tag FROM run_tags WHERE project_id = ?1 AND run_id = ?2 LIMIT ?3);

-- name: remove_deletion
DELETE FROM run_deletions WHERE project_id = ?1 AND run_id = ?2 AND ?3 <> 0;

-- name: add_deletion
-- The values of a run were deleted.
INSERT INTO run_deletions (project_id, run_id, deleted_at) VALUES (?, ?, ?);

-- name: load_deletion
-- When that was.
SELECT deleted_at FROM run_deletions WHERE project_id = ? AND run_id = ?;

-- name: archives_left
-- Runs of which rows may still be there.
SELECT run_id FROM run_archives WHERE project_id = ? AND is_removed = 0 LIMIT ?;

-- name: archive_removed
-- Nothing of a run is left but in its file.
UPDATE run_archives SET is_removed = 1 WHERE project_id = ? AND run_id = ?;

-- name: forget_archive
-- A run comes back from where it is: not from where it was before it left once more.
DELETE FROM run_archives WHERE project_id = ? AND run_id = ? AND file = ? AND position = ?;

-- name: load_archive
-- Where a run is.
SELECT run_id, workflow, workflow_version, status, created_at, ended_at, last_seq, archived_at, file, position, size, digest
  FROM run_archives WHERE project_id = ? AND run_id = ?;

-- name: where_is
-- Where a run is at one moment: who looks into one place after the other misses one that goes the other way.
SELECT 'database' FROM run_state WHERE project_id = ?1 AND run_id = ?2
 UNION ALL
SELECT 'archive' FROM run_archives WHERE project_id = ?1 AND run_id = ?2;

-- name: list_archives
-- A page of what is in the archive, newest first.
SELECT run_id, workflow, workflow_version, status, created_at, ended_at, last_seq, archived_at, file, position, size, digest
  FROM run_archives
 WHERE project_id = ?1 AND (?2 IS NULL OR substr(CAST(run_id AS BLOB), 1, length(CAST(?2 AS BLOB))) = CAST(?2 AS BLOB))
   AND (?3 IS NULL OR (created_at, run_id) < (?3, ?4))
 ORDER BY created_at DESC, run_id DESC LIMIT ?5;

-- name: archive_files
-- Which files hold runs.
SELECT DISTINCT file FROM run_archives WHERE project_id = ?;
