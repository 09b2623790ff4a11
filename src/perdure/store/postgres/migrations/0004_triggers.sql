-- Triggers, for people: what feeds a run from outside, and what has come. Both stand in the log. A trigger that has begun again on a
-- branch counts from there. As for questions, nothing is taken out of a document in which the NUL character occurs.

CREATE VIEW triggers AS
SELECT r.project_id, r.run_id, r.branch_id, r.node_id,
       CASE WHEN strpos(r.payload, '\u0000') = 0 THEN r.payload::json->>'trigger_type' END AS type,
       CASE WHEN strpos(r.payload, '\u0000') = 0 THEN coalesce(r.payload::json->>'config', '{}') END AS config,
       (SELECT CASE WHEN strpos(c.payload, '\u0000') = 0 THEN (c.payload::json->'cursor')::text END
          FROM run_events AS c
         WHERE c.project_id = r.project_id AND c.run_id = r.run_id AND c.seq > r.seq AND c.node_id = r.node_id
           AND c.event_type = 'TriggerCursorAdvanced'
         ORDER BY c.seq DESC LIMIT 1) AS cursor,
       (SELECT count(*)
          FROM run_events AS i
         WHERE i.project_id = r.project_id AND i.run_id = r.run_id AND i.seq > r.seq AND i.node_id = r.node_id
           AND i.event_type = 'TriggerInputReceived') AS inputs,
       r.event_time AS registered_at
  FROM run_events AS r
 WHERE r.event_type = 'TriggerRegistered'
   AND NOT EXISTS (
       SELECT 1 FROM run_events AS later
        WHERE later.project_id = r.project_id AND later.run_id = r.run_id AND later.seq > r.seq
          AND later.node_id = r.node_id AND later.event_type = 'TriggerRegistered');

CREATE VIEW trigger_inputs AS
SELECT n.project_id, n.run_id, n.branch_id, n.node_id,
       CASE WHEN strpos(n.payload, '\u0000') = 0 THEN n.payload::json->>'input_id' END AS input_id, n.position, n.seq,
       CASE WHEN n.next_type = 'TriggerCursorAdvanced' AND strpos(n.next_payload, '\u0000') = 0
            THEN (n.next_payload::json->'cursor')::text END AS cursor,
       n.event_time AS received_at
  FROM (SELECT b.*,
               count(*) FILTER (WHERE b.event_type = 'TriggerInputReceived')
                   OVER (PARTITION BY b.project_id, b.run_id, b.node_id, b.beginnings ORDER BY b.seq) - 1 AS position
          FROM (SELECT e.project_id, e.run_id, e.branch_id, e.node_id, e.seq, e.event_type, e.event_time, e.payload,
                       count(*) FILTER (WHERE e.event_type = 'TriggerRegistered') OVER trigger_so_far AS beginnings,
                       lead(e.event_type) OVER trigger_so_far AS next_type,
                       lead(e.payload) OVER trigger_so_far AS next_payload
                  FROM run_events AS e
                 WHERE e.event_type IN ('TriggerRegistered', 'TriggerInputReceived', 'TriggerCursorAdvanced')
                WINDOW trigger_so_far AS (PARTITION BY e.project_id, e.run_id, e.node_id ORDER BY e.seq)) AS b) AS n
 WHERE n.event_type = 'TriggerInputReceived';
