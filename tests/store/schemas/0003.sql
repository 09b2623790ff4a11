-- Rows as they were written under schema 3: a run that has ended, one that nobody owns, one with items in flight and one that waits, in
-- the columns of both databases.

INSERT INTO workflow_versions (project_id, workflow, version, graph_hash, graph, source, created_at) VALUES
('default', 'letters', 1, '5f0c', '{"name":"letters","nodes":[]}', '{"module":"tests"}', 1);

INSERT INTO run_state (project_id, run_id, workflow, workflow_version, graph_hash, status, branch_id, owner,
    lease_epoch, last_seq, version, inputs, settings, source, outputs, error, failed_node, reason, recoveries,
    created_at, started_at, ended_at) VALUES
('default', 'ended', 'letters', 1, '5f0c', 'completed', 1, NULL, 1, 11, 3, '{}', '{}', '{"module":"tests"}', '{"output":{"text":"done"}}', NULL, NULL, '', 0, 1700000000000000, 1700000000002000, 1700000000010000),
('default', 'moving', 'letters', 1, '5f0c', 'running', 1, NULL, 1, 9, 2, '{}', '{}', '{"module":"tests"}', NULL, NULL, NULL, '', 0, 1700000000011000, 1700000000013000, NULL),
('default', 'flowing', 'letters', 1, '5f0c', 'running', 1, NULL, 1, 6, 2, '{}', '{}', '{"module":"tests"}', NULL, NULL, NULL, '', 0, 1700000000020000, 1700000000022000, NULL);

INSERT INTO run_state (project_id, run_id, workflow, workflow_version, graph_hash, status, branch_id, owner,
    lease_epoch, last_seq, version, inputs, settings, source, outputs, error, failed_node, reason, recoveries,
    created_at, started_at, ended_at, wake_at) VALUES
('default', 'waiting', 'letters', 1, '5f0c', 'suspended', 1, NULL, 1, 9, 2, '{}', '{}', '{"module":"tests"}', NULL, NULL, NULL, 'sleeps', 0, 1700000000030000, 1700000000032000, NULL, 1800000000000000);

INSERT INTO run_branches (project_id, run_id, branch_id, parent_id, cut_seq, dropped, created_seq) VALUES
('default', 'ended', 1, NULL, NULL, '[]', 1),
('default', 'moving', 1, NULL, NULL, '[]', 1),
('default', 'flowing', 1, NULL, NULL, '[]', 1),
('default', 'waiting', 1, NULL, NULL, '[]', 1);

INSERT INTO run_node_state (project_id, run_id, branch_id, node_id, status, attempt, attempt_ended, generation,
    failures, lost, outputs, error, checkpoint, reason, due, scheduled_at, started_at, ended_at, duration_ms,
    last_seq) VALUES
('default', 'ended', 1, 'step0', 'completed', 1, 0, 1, 0, 0, '{"output":{"value":0}}', NULL, NULL, '', NULL, 1700000000003000, 1700000000004000, 1700000000006000, 3, 7),
('default', 'ended', 1, 'step1', 'completed', 1, 0, 1, 0, 0, '{"output":null}', NULL, NULL, '', NULL, 1700000000007000, 1700000000008000, 1700000000009000, 3, 10),
('default', 'moving', 1, 'step0', 'completed', 1, 0, 1, 0, 0, '{"output":{"value":0}}', NULL, '[1,2]', '', NULL, 1700000000014000, 1700000000015000, 1700000000017000, 3, 7),
('default', 'moving', 1, 'step1', 'running', 1, 0, 1, 0, 0, NULL, NULL, NULL, '', NULL, 1700000000018000, 1700000000019000, NULL, NULL, 9),
('default', 'waiting', 1, 'step0', 'suspended', 1, 0, 1, 0, 0, NULL, NULL, NULL, 'it waits', NULL, 1700000000033000, 1700000000034000, NULL, NULL, 7);

INSERT INTO run_node_state (project_id, run_id, branch_id, node_id, status, attempt, attempt_ended, generation,
    failures, lost, outputs, error, checkpoint, reason, due, scheduled_at, started_at, ended_at, duration_ms,
    last_seq, stream) VALUES
('default', 'flowing', 1, 'step0', 'running', 1, 0, 1, 0, 0, NULL, NULL, NULL, '', NULL, 1700000000023000, 1700000000024000, NULL, NULL, 6, '{"branch_id":1,"entries":2,"digest":"fb0288872031fc4818c03a7253bd3a78de192d05e6bccd09ceabeda65b4d7c6f"}');

INSERT INTO run_events (project_id, run_id, seq, id, branch_id, epoch, event_type, event_time, node_id,
    payload) VALUES
('default', 'ended', 1, '01a1e111-e484-77ab-b26c-f3f8693d1ecc', 1, 0, 'RunCreated', 1700000000000000, NULL, '{"type":"RunCreated","workflow":"letters","version":1,"graph_hash":"5f0c","source":{"module":"tests"}}'),
('default', 'ended', 2, '01a1e111-e484-77ab-b26c-f3f90260e040', 1, 1, 'RunClaimed', 1700000000001000, NULL, '{"type":"RunClaimed","engine_id":"engine-a","epoch":1}'),
('default', 'ended', 3, '01a1e111-e484-77ab-b26c-f3fac31fb01e', 1, 1, 'RunStarted', 1700000000002000, NULL, '{"type":"RunStarted"}'),
('default', 'ended', 4, '01a1e111-e484-77ab-b26c-f3fb2b3ee9c0', 1, 1, 'NodeScheduled', 1700000000003000, 'step0', '{"type":"NodeScheduled","node_id":"step0","attempt":1}'),
('default', 'ended', 5, '01a1e111-e484-77ab-b26c-f3fce0f8fd5a', 1, 1, 'NodeStarted', 1700000000004000, 'step0', '{"type":"NodeStarted","node_id":"step0","attempt":1}'),
('default', 'ended', 6, '01a1e111-e484-77ab-b26c-f3fd3f353609', 1, 1, 'StepCompleted', 1700000000005000, 'step0', '{"type":"StepCompleted","node_id":"step0","attempt":1,"name":"fetch","occurrence":0,"result":{"it''s":"ünï"}}'),
('default', 'ended', 7, '01a1e111-e485-70a7-9c46-2b9a621cc8e7', 1, 1, 'NodeCompleted', 1700000000006000, 'step0', '{"type":"NodeCompleted","node_id":"step0","attempt":1,"outputs":{"output":{"value":0}},"duration_ms":3}'),
('default', 'ended', 8, '01a1e111-e485-70a7-9c46-2b9b8c161c0c', 1, 1, 'NodeScheduled', 1700000000007000, 'step1', '{"type":"NodeScheduled","node_id":"step1","attempt":1}'),
('default', 'ended', 9, '01a1e111-e485-70a7-9c46-2b9c1a03d8f3', 1, 1, 'NodeStarted', 1700000000008000, 'step1', '{"type":"NodeStarted","node_id":"step1","attempt":1}'),
('default', 'ended', 10, '01a1e111-e486-73bd-b219-d3df61846620', 1, 1, 'NodeCompleted', 1700000000009000, 'step1', '{"type":"NodeCompleted","node_id":"step1","attempt":1,"outputs":{"output":null},"duration_ms":3}'),
('default', 'ended', 11, '01a1e111-e486-73bd-b219-d3e067964a37', 1, 1, 'RunCompleted', 1700000000010000, NULL, '{"type":"RunCompleted","outputs":{"output":{"text":"done"}},"duration_ms":5}'),
('default', 'moving', 1, '01a1e111-e486-73bd-b219-d3e172c96ab4', 1, 0, 'RunCreated', 1700000000011000, NULL, '{"type":"RunCreated","workflow":"letters","version":1,"graph_hash":"5f0c","source":{"module":"tests"}}'),
('default', 'moving', 2, '01a1e111-e486-73bd-b219-d3e287825334', 1, 1, 'RunClaimed', 1700000000012000, NULL, '{"type":"RunClaimed","engine_id":"engine-a","epoch":1}'),
('default', 'moving', 3, '01a1e111-e486-73bd-b219-d3e3d75cac20', 1, 1, 'RunStarted', 1700000000013000, NULL, '{"type":"RunStarted"}'),
('default', 'moving', 4, '01a1e111-e486-73bd-b219-d3e4b785bef0', 1, 1, 'NodeScheduled', 1700000000014000, 'step0', '{"type":"NodeScheduled","node_id":"step0","attempt":1}'),
('default', 'moving', 5, '01a1e111-e486-73bd-b219-d3e5e813fc36', 1, 1, 'NodeStarted', 1700000000015000, 'step0', '{"type":"NodeStarted","node_id":"step0","attempt":1}'),
('default', 'moving', 6, '01a1e111-e486-73bd-b219-d3e679cfd9f9', 1, 1, 'NodeCheckpointed', 1700000000016000, 'step0', '{"type":"NodeCheckpointed","node_id":"step0","attempt":1,"state":[1,2]}'),
('default', 'moving', 7, '01a1e111-e488-749f-9367-cfe0f539c013', 1, 1, 'NodeCompleted', 1700000000017000, 'step0', '{"type":"NodeCompleted","node_id":"step0","attempt":1,"outputs":{"output":{"value":0}},"duration_ms":3}'),
('default', 'moving', 8, '01a1e111-e488-749f-9367-cfe1dda448d6', 1, 1, 'NodeScheduled', 1700000000018000, 'step1', '{"type":"NodeScheduled","node_id":"step1","attempt":1}'),
('default', 'moving', 9, '01a1e111-e488-749f-9367-cfe2fd6d03c0', 1, 1, 'NodeStarted', 1700000000019000, 'step1', '{"type":"NodeStarted","node_id":"step1","attempt":1}'),
('default', 'flowing', 1, '01a1e1bc-5da1-75d9-9859-8605275e57f4', 1, 0, 'RunCreated', 1700000000020000, NULL, '{"type":"RunCreated","workflow":"letters","version":1,"graph_hash":"5f0c","source":{"module":"tests"}}'),
('default', 'flowing', 2, '01a1e1bc-5da1-75d9-9859-860604d61370', 1, 1, 'RunClaimed', 1700000000021000, NULL, '{"type":"RunClaimed","engine_id":"engine-a","epoch":1}'),
('default', 'flowing', 3, '01a1e1bc-5da1-75d9-9859-8607f6a63fb1', 1, 1, 'RunStarted', 1700000000022000, NULL, '{"type":"RunStarted"}'),
('default', 'flowing', 4, '01a1e1bc-5da1-75d9-9859-8608d07c7325', 1, 1, 'NodeScheduled', 1700000000023000, 'step0', '{"type":"NodeScheduled","node_id":"step0","attempt":1}'),
('default', 'flowing', 5, '01a1e1bc-5da1-75d9-9859-8609ed5194d5', 1, 1, 'NodeStarted', 1700000000024000, 'step0', '{"type":"NodeStarted","node_id":"step0","attempt":1,"streams":true,"generates":true}'),
('default', 'flowing', 6, '01a1e1bc-5da1-75d9-9859-860ac13d853b', 1, 1, 'OutboxEnqueued', 1700000000025000, 'step0', '{"type":"OutboxEnqueued","node_id":"step0","attempt":1,"ranges":[[0,2]],"digest":"c0ffee"}'),
('default', 'waiting', 1, '01a1e1bc-5da1-75d9-9859-8605275e5801', 1, 0, 'RunCreated', 1700000000030000, NULL, '{"type":"RunCreated","workflow":"letters","version":1,"graph_hash":"5f0c","source":{"module":"tests"}}'),
('default', 'waiting', 2, '01a1e1bc-5da1-75d9-9859-8605275e5802', 1, 1, 'RunClaimed', 1700000000031000, NULL, '{"type":"RunClaimed","engine_id":"engine-a","epoch":1}'),
('default', 'waiting', 3, '01a1e1bc-5da1-75d9-9859-8605275e5803', 1, 1, 'RunStarted', 1700000000032000, NULL, '{"type":"RunStarted"}'),
('default', 'waiting', 4, '01a1e1bc-5da1-75d9-9859-8605275e5804', 1, 1, 'NodeScheduled', 1700000000033000, 'step0', '{"type":"NodeScheduled","node_id":"step0","attempt":1}'),
('default', 'waiting', 5, '01a1e1bc-5da1-75d9-9859-8605275e5805', 1, 1, 'NodeStarted', 1700000000034000, 'step0', '{"type":"NodeStarted","node_id":"step0","attempt":1}'),
('default', 'waiting', 6, '01a1e1bc-5da1-75d9-9859-8605275e5806', 1, 1, 'TimerSet', 1700000000035000, 'step0', '{"type":"TimerSet","node_id":"step0","attempt":1,"name":"sleep","occurrence":0,"timer_id":"waiting/step0/1","due":1800000000000000}'),
('default', 'waiting', 7, '01a1e1bc-5da1-75d9-9859-8605275e5807', 1, 1, 'NodeSuspended', 1700000000036000, 'step0', '{"type":"NodeSuspended","node_id":"step0","attempt":1,"reason":"it waits"}'),
('default', 'waiting', 8, '01a1e1bc-5da1-75d9-9859-8605275e5808', 1, 1, 'SignalReceived', 1700000000037000, NULL, '{"type":"SignalReceived","name":"go","signal_id":"s1","value":1}'),
('default', 'waiting', 9, '01a1e1bc-5da1-75d9-9859-8605275e5809', 1, 1, 'RunSuspended', 1700000000038000, NULL, '{"type":"RunSuspended","reason":"sleeps","wake_at":1800000000000000}');

INSERT INTO run_waits (project_id, run_id, branch_id, wait_id, node_id, kind, name, occurrence, status, question, signal, signal_id, due,
    result, responded_by, opened_at, settled_at, last_seq) VALUES
('default', 'waiting', 1, 'waiting/step0/1', 'step0', 'sleep', 'sleep', 0, 'open', NULL, NULL, NULL, 1800000000000000, NULL, '', 1700000000035000, NULL, 6);

INSERT INTO run_signals (project_id, run_id, signal_id, name, value, received_at, seq) VALUES
('default', 'waiting', 's1', 'go', '1', 1700000000037000, 8);

INSERT INTO run_steps (project_id, run_id, branch_id, node_id, name, occurrence, result, seq) VALUES
('default', 'ended', 1, 'step0', 'fetch', 0, '{"it''s":"ünï"}', 6);

INSERT INTO run_commands (project_id, run_id, command_id, kind, payload, created_at, taken_seq) VALUES
('default', 'moving', 'c1', 'pause', '{"reason":"lunch"}', 5, NULL);

INSERT INTO blobs (project_id, digest, run_id, size) VALUES
('default', 'd1', 'ended', 3);

INSERT INTO run_inbox_messages (project_id, run_id, branch_id, node_id, position, count, is_plain, seq, items) VALUES
('default', 'flowing', 1, 'step0', 0, 2, 1, 6, '["one",{"two":2}]');
