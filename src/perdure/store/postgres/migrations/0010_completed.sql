-- What earlier runs of a version took is asked for by whoever looks at one, however many runs there are. Building an index counts the
-- rows of its table, and where that is empty would undo what was done for its statistics: so there are samples again meanwhile.

INSERT INTO workflow_versions (project_id, workflow, version, graph_hash, graph, source, created_at)
SELECT 'default', 'sample-' || i, 1, 'sample', 'sample', '{}', i FROM generate_series(1, 40) AS i
ON CONFLICT DO NOTHING;

INSERT INTO run_state (project_id, run_id, workflow, workflow_version, graph_hash, status, branch_id, owner, lease_epoch, last_seq,
                       version, inputs, settings, source, reason, recoveries, created_at, started_at)
SELECT 'default', md5(i::text), 'sample-' || i, 1, md5(i::text), 'running', 1, 'sample', 1, i, i, '{}', 'sample', '{}', '', 0, i, i
  FROM generate_series(1, 40) AS i
ON CONFLICT DO NOTHING;

CREATE INDEX run_state_completed ON run_state (project_id, workflow, workflow_version, ended_at, run_id)
    WHERE status = 'completed';

ANALYZE workflow_versions, run_state;

DELETE FROM run_state WHERE settings = 'sample';
DELETE FROM workflow_versions WHERE graph = 'sample';
