--# delete -> refused: SUMMARIZE is taken, not DELETE
DELETE FROM hosts
--# delete with truncate -> refused: not TRUNCATE
TRUNCATE hosts
--# insert -> refused: not INSERT
INSERT INTO hosts SELECT * FROM hosts
--# update -> refused: not UPDATE
UPDATE hosts SET host = 'x'
--# merge -> refused: not MERGE
MERGE INTO hosts USING (SELECT 1 AS a) ON false WHEN NOT MATCHED THEN INSERT BY NAME
--# delete hidden in a CTE -> refused:
WITH gone AS (DELETE FROM hosts RETURNING *) SELECT * FROM gone
--# delete hidden in a nested CTE -> refused:
WITH a AS (WITH b AS (DELETE FROM hosts RETURNING *) SELECT * FROM b) SELECT * FROM a
--# insert hidden in a subquery -> refused:
SELECT * FROM (INSERT INTO hosts DEFAULT VALUES RETURNING *)
--# update hidden in a materialised CTE -> refused:
WITH u AS MATERIALIZED (UPDATE hosts SET host = 'x' RETURNING host) FROM u
--# a CTE before a delete -> refused: not WITH
WITH a AS (SELECT 1) DELETE FROM hosts
--# explain analyze of a delete -> refused: statements that write cannot be explained
EXPLAIN ANALYZE DELETE FROM hosts
--# explain of an insert -> refused: statements that write cannot be explained
EXPLAIN INSERT INTO hosts SELECT * FROM hosts
--# explain analyze of a copy -> refused: statements that write cannot be explained
EXPLAIN ANALYZE COPY hosts TO '/tmp/hosts.csv'
--# create table -> refused: not CREATE
CREATE TABLE mine AS SELECT 1
--# temporary table -> refused: not CREATE
CREATE TEMP TABLE mine AS SELECT 1
--# create or replace a view of ours -> refused: not CREATE
CREATE OR REPLACE VIEW ops.worst_hosts AS SELECT 1
--# a macro that shadows ours -> refused: not CREATE
CREATE OR REPLACE TEMP MACRO worst(n := 10) AS TABLE SELECT 'all is well'
--# a macro that shadows a built-in -> refused: not CREATE
CREATE TEMP FUNCTION abs(x) AS write_log(x)
--# create a sequence -> refused: not CREATE
CREATE SEQUENCE s
--# create a type -> refused: not CREATE
CREATE TYPE t AS ENUM ('a')
--# create a secret -> refused: not CREATE
CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')
--# select into -> refused: Parser error
SELECT * INTO mine FROM hosts
--# drop -> refused: not DROP
DROP TABLE hosts
--# alter -> refused: not ALTER
ALTER TABLE hosts ADD COLUMN a INT
--# comment on -> refused: not COMMENT
COMMENT ON TABLE hosts IS 'mine'
--# vacuum -> refused: not VACUUM
VACUUM
--# analyze -> refused: not ANALYZE
ANALYZE
--# begin -> refused: not BEGIN
BEGIN TRANSACTION
--# commit -> refused: not COMMIT
COMMIT
--# rollback of our transaction -> refused: not ROLLBACK
ROLLBACK
--# checkpoint -> refused: not CHECKPOINT
CHECKPOINT
--# force checkpoint -> refused: not FORCE
FORCE CHECKPOINT
