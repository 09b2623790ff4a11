-- Aliases of workflows: names for a version, or for several with weights. Each move is a row and no row is ever changed: the last
-- one of an alias says where it points, those before it where it has pointed. `targets` are weights by version, as JSON; where
-- there are none, the alias was removed, and `latest` follows the newest version. `restores` is the move whose targets a
-- rollback has brought back.

CREATE TABLE workflow_alias_moves (
    project_id  text   COLLATE "C" NOT NULL,
    workflow    text   COLLATE "C" NOT NULL,
    alias       text   COLLATE "C" NOT NULL,
    revision    bigint NOT NULL CHECK (revision >= 1),
    targets     text   NOT NULL,
    restores    bigint CHECK (restores < revision),
    moved_at    bigint NOT NULL, -- microseconds since 1970-01-01 UTC
    PRIMARY KEY (project_id, workflow, alias, revision)
);

CREATE VIEW workflow_aliases AS
SELECT m.project_id, m.workflow, m.alias, m.targets, m.revision, m.moved_at
  FROM workflow_alias_moves AS m
 WHERE m.targets <> '{}'
   AND NOT EXISTS (SELECT 1 FROM workflow_alias_moves AS later
                    WHERE later.project_id = m.project_id AND later.workflow = m.workflow AND later.alias = m.alias
                      AND later.revision > m.revision);

ALTER TABLE workflow_alias_moves ALTER COLUMN project_id SET (n_distinct = 1);
