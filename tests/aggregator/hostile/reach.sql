--# read_csv -> refused: the function read_csv in FROM is not allowed
FROM read_csv('/etc/passwd')
--# read_text -> refused: the function read_text in FROM is not allowed
FROM read_text('/etc/passwd')
--# read_blob -> refused: the function read_blob in FROM is not allowed
FROM read_blob('/proc/self/environ')
--# read_json -> refused: the function read_json in FROM is not allowed
FROM read_json('/etc/passwd')
--# read_parquet, also of the history -> refused: the function read_parquet in FROM is not allowed
FROM read_parquet('segments/*.parquet')
--# parquet metadata -> refused: the function parquet_metadata in FROM is not allowed
FROM parquet_metadata('segments/a.parquet')
--# the SQL of views, which names files -> refused: the function duckdb_views in FROM is not allowed
FROM duckdb_views()
--# glob -> refused: the function glob in FROM is not allowed
FROM glob('/*')
--# sniff_csv -> refused: the function sniff_csv in FROM is not allowed
FROM sniff_csv('/etc/passwd')
--# a file as a table -> refused: does not exist
FROM '/etc/passwd'
--# a csv file as a table -> refused: are not accessible
FROM '/etc/passwd.csv'
--# a parquet file as a table -> refused: are not accessible
FROM '/var/lib/other.parquet'
--# a json file as a table -> refused: are not accessible
SELECT * FROM '../../../etc/hosts.json'
--# a database file as a table -> refused:
FROM 'gangline.duckdb'
--# the live store through a link upwards -> refused: are not accessible
FROM 'segments/../gangline.parquet'
--# https -> refused:
FROM 'https://example.com/a.parquet'
--# s3 -> refused:
FROM 's3://bucket/key.parquet'
--# httpfs by its function -> refused: the function read_csv in FROM is not allowed
FROM read_csv('https://example.com/a.csv')
--# a file within a scalar subquery -> refused: the function read_text in FROM is not allowed
SELECT (SELECT content FROM read_text('/etc/passwd'))
--# a variable of the program -> refused:
FROM connection
--# arrow scan -> refused: the function arrow_scan in FROM is not allowed
FROM arrow_scan(0, 0, 0)
--# a pointer as a data frame -> refused: the function pandas_scan in FROM is not allowed
FROM pandas_scan(140000000000)
--# python map -> refused: the function python_map_function in FROM is not allowed
FROM python_map_function(1)
--# attach -> refused: not ATTACH
ATTACH '/tmp/other.duckdb'
--# attach a server -> refused: not ATTACH
ATTACH 'host=127.0.0.1' AS p (TYPE postgres)
--# detach -> refused: not DETACH
DETACH operators
--# use -> refused: not USE
USE system
--# set -> refused: not SET
SET enable_external_access = true
--# set global -> refused: not SET
SET GLOBAL memory_limit = '100GB'
--# set a variable -> refused: not SET
SET VARIABLE a = 1
--# reset -> refused: not RESET
RESET memory_limit
--# pragma -> refused: PRAGMA
PRAGMA memory_limit='100GB'
--# pragma that reads -> refused: PRAGMA
PRAGMA database_size
--# pragma with a name of SQL -> refused: PRAGMA
PRAGMA enable_profiling
--# install -> refused: not INSTALL
INSTALL httpfs
--# load -> refused: not LOAD
LOAD httpfs
--# load by path -> refused: not LOAD
LOAD '/tmp/evil.duckdb_extension'
--# copy out -> refused: not COPY
COPY hosts TO '/tmp/hosts.csv'
--# copy a query out -> refused: not COPY
COPY (SELECT 1) TO '/dev/stdout'
--# copy in -> refused: not COPY
COPY hosts FROM '/etc/passwd'
--# copy a database -> refused: SUMMARIZE is taken
COPY FROM DATABASE operators TO system
--# export -> refused: not EXPORT
EXPORT DATABASE '/tmp/out'
--# import -> refused:
IMPORT DATABASE '/tmp/out'
--# call -> refused: not CALL
CALL pragma_version()
--# call that acts -> refused: not CALL
CALL enable_logging()
--# enable_profiling in FROM -> refused: the function enable_profiling in FROM is not allowed
FROM enable_profiling()
--# enable_logging in FROM -> refused: the function enable_logging in FROM is not allowed
FROM enable_logging('QueryLog')
--# logs of others -> refused: the function duckdb_logs in FROM is not allowed
FROM duckdb_logs()
--# truncate the logs -> refused: the function truncate_duckdb_logs in FROM is not allowed
FROM truncate_duckdb_logs()
--# checkpoint in FROM -> refused: the function checkpoint in FROM is not allowed
FROM checkpoint()
--# force_checkpoint in FROM -> refused: the function force_checkpoint in FROM is not allowed
FROM force_checkpoint('operators')
--# secrets -> refused: the function duckdb_secrets in FROM is not allowed
FROM duckdb_secrets()
--# which secret -> refused: the function which_secret in FROM is not allowed
FROM which_secret('s3://a', 's3')
--# settings -> refused: the function duckdb_settings in FROM is not allowed
FROM duckdb_settings()
--# one setting -> refused: the function current_setting is not allowed
SELECT current_setting('secret_directory')
--# the environment -> refused: the function getenv is not allowed
SELECT getenv('HOME')
--# write_log -> refused: the function write_log is not allowed
SELECT write_log('x')
--# a sequence's next -> refused: the function nextval is not allowed
SELECT nextval('s')
--# sleep -> refused: the function sleep_ms is not allowed
SELECT sleep_ms(100000)
--# sleep as PostgreSQL has it -> refused: the function pg_sleep is not allowed
SELECT pg_sleep(100)
--# SQL within a string -> refused: the function query in FROM is not allowed
FROM query('DELETE FROM hosts')
--# a table within a string -> refused: the function query_table in FROM is not allowed
FROM query_table(['/etc/passwd'])
--# SQL within JSON -> refused: the function json_execute_serialized_sql in FROM is not allowed
FROM json_execute_serialized_sql('{}')
--# pages of the file -> refused: the function pragma_storage_info in FROM is not allowed
FROM pragma_storage_info('hosts')
--# a method of a column named ops that writes the log -> refused: the function write_log is not allowed
SELECT ops.write_log() FROM (SELECT 'x' AS ops)
--# a method of a column named ops that sleeps -> refused: the function sleep_ms is not allowed
SELECT t.ops.sleep_ms() FROM (SELECT 60000 AS ops) t
--# a method of a lambda's ops that reads a setting -> refused: the function current_setting is not allowed
SELECT list_transform(['memory_limit'], lambda ops: ops.current_setting())
--# a table function as one of ours -> refused: does not exist
FROM ops.read_text('/etc/passwd')
--# a table function as one of the history's -> refused: does not exist
FROM history.read_text('/etc/passwd')
--# a method of a column named history that writes the log -> refused: the function write_log is not allowed
SELECT history.write_log() FROM (SELECT 'x' AS history)
--# a lateral method of a table named history -> refused:
FROM hosts AS history, history.read_text('/etc/passwd')
--# a schema named history that is another's -> refused:
FROM system.history.read_text('/etc/passwd')
--# settings as PostgreSQL has them -> refused: pg_settings is not allowed
FROM pg_settings
--# settings, written otherwise -> refused: pg_settings is not allowed
SELECT setting FROM "PG_Catalog"."PG_Settings"
--# settings, with their catalog -> refused: pg_settings is not allowed
FROM system.pg_catalog.pg_settings
--# settings as a file -> refused: pg_settings is not allowed
FROM 'pg_settings'
--# settings, summarized -> refused: pg_settings is not allowed
SUMMARIZE pg_settings
--# settings in a PIVOT -> refused: pg_settings is not allowed
PIVOT (SELECT setting, 1 AS n FROM pg_settings) ON n IN (1) USING first(setting)
--# settings in a subquery of an expression -> refused: pg_settings is not allowed
SELECT (SELECT list(setting) FROM pg_settings) FROM hosts
--# settings behind a CTE of ours -> refused: pg_settings is not allowed
WITH a AS (SELECT * FROM pg_settings) FROM a
--# settings in a plan -> refused: pg_settings is not allowed
EXPLAIN ANALYZE FROM pg_settings
--# settings by TABLE -> refused: pg_settings is not allowed
TABLE pg_settings
--# where the databases are -> refused: duckdb_databases is not allowed
FROM duckdb_databases
--# where the databases are, with the schema -> refused: duckdb_databases is not allowed
FROM main.duckdb_databases
--# where the databases are, with the catalog -> refused: duckdb_databases is not allowed
FROM system.duckdb_databases
--# the list of databases -> refused: pragma_database_list is not allowed
SELECT file FROM pragma_database_list
--# the log as a view -> refused: duckdb_logs is not allowed
FROM duckdb_logs
--# statements of others -> refused: pg_prepared_statements is not allowed
FROM pg_prepared_statements
--# SQL of views, which names files -> refused: views is not allowed
SELECT view_definition FROM information_schema.views
--# SQL of views beside one's own of the name -> refused: views is not allowed
WITH views AS (SELECT 1) FROM information_schema.views, views
--# SQL of views as SQLite has it -> refused: sqlite_master is not allowed
FROM sqlite_master
