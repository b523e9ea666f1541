--# worst -> answered
FROM ops.worst(n := 5)
--# explain a host -> answered
FROM ops.explain('host-1')
--# freshness -> answered
FROM ops.freshness
--# hosts, scores, findings, faults -> answered
SELECT * FROM ops.hosts JOIN ops.scores_now USING (host), ops.findings
--# history of a GPU -> answered
SELECT time, power_watts FROM ops.gpu_history('GPU-0') ORDER BY time DESC
--# our scalar macro -> answered
SELECT ops.severity('UNHEALTHY'), ops.counter_step(1, 2, 32, false)
--# with its catalog -> answered
FROM operators.ops.freshness
--# evidence beside the readings -> answered
SELECT e.host, e.message, g.temperature_celsius FROM evidence AS e LEFT JOIN latest.gpu_1s AS g USING (host)
--# explain -> answered
EXPLAIN FROM ops.worst(n := 5)
--# explain analyze -> answered
EXPLAIN ANALYZE SELECT count(*) FROM latest.gpu_1s
--# explain with options -> answered
EXPLAIN (FORMAT json) SELECT 1
--# explain behind comments -> answered
-- why is this slow?
/* at night */ explain select 1
--# describe -> answered
DESCRIBE latest.gpu_1s
--# describe a question -> answered
DESCRIBE SELECT 1 AS a
--# show tables -> answered
SHOW ALL TABLES
--# show one -> answered
SHOW hosts
--# summarize -> answered
SUMMARIZE latest.gpu_1s
--# summarize a question -> answered
SUMMARIZE SELECT range FROM range(100)
--# what columns there are -> answered
SELECT table_name, column_name FROM duckdb_columns() WHERE schema_name = 'latest'
--# information_schema -> answered
SELECT table_schema, table_name FROM information_schema.tables
--# pg_catalog -> answered
SELECT relname FROM pg_catalog.pg_class
--# windows and QUALIFY -> answered
SELECT device, time, power_watts - lag(power_watts) OVER w AS step FROM readings.gpu_1s WINDOW w AS (PARTITION BY device ORDER BY time) QUALIFY row_number() OVER (PARTITION BY device ORDER BY time DESC) <= 2
--# a range frame -> answered
SELECT avg(power_watts) OVER (ORDER BY time RANGE BETWEEN INTERVAL 10 SECOND PRECEDING AND CURRENT ROW) FROM readings.gpu_1s
--# PIVOT with its values -> answered
PIVOT (SELECT host, device, power_watts FROM latest.gpu_1s) ON device IN ('GPU-0', 'GPU-1') USING first(power_watts)
--# PIVOT without is told how -> refused: PIVOT needs its values named
PIVOT latest.gpu_1s ON device USING first(power_watts)
--# UNPIVOT -> answered
UNPIVOT (SELECT 1 AS a, 2 AS b) ON a, b INTO NAME n VALUE v
--# ASOF join -> answered
SELECT g.time, s.score FROM readings.gpu_1s AS g ASOF LEFT JOIN scores AS s ON g.host = s.host AND g.time >= s.time
--# GROUP BY ALL, ROLLUP, FILTER -> answered
SELECT device, count(*) FILTER (power_watts > 1), grouping(device) FROM latest.gpu_1s GROUP BY ROLLUP (device)
--# time buckets -> answered
SELECT time_bucket(INTERVAL 1 MINUTE, time) AS minute, max(temperature_celsius), quantile_cont(power_watts, 0.99), arg_max(device, power_watts) FROM readings.gpu_1s GROUP BY ALL ORDER BY ALL
--# the last quarter of an hour -> answered
SELECT count(*) FROM readings.gpu_1s WHERE time > now()::TIMESTAMP - INTERVAL 15 MINUTE AND date_trunc('hour', time) <= current_timestamp::TIMESTAMP
--# lists, structs, maps, lambdas -> answered
SELECT list_transform([1, 2], lambda x: x + 1), {'a': 1}.a, map {'k': 1}['k'], [x * 2 FOR x IN [1, 2] IF x > 1], unnest([1, 2])
--# labels of a host -> answered
SELECT host, labels['rack'], map_keys(labels) FROM hosts
--# strings and patterns -> answered
SELECT host LIKE 'h%', host ILIKE 'H%', host SIMILAR TO '.*', host ~ 'x', regexp_extract(host, '\d+'), split_part(host, '-', 1), host[1:2], 'a' || 'b', format('{}', 1), printf('%d', 1) FROM hosts
--# casts and nulls -> answered
SELECT '1'::INT, TRY_CAST('x' AS INT), coalesce(NULL, 1), nullif(1, 1), ifnull(NULL, 2), if(true, 1, 2), CASE WHEN 1 = 1 THEN 2 END, 1 IS DISTINCT FROM NULL
--# a recursive CTE that ends -> answered
WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t WHERE x < 10) SELECT sum(x) FROM t
--# VALUES, TABLE, set operations -> answered
(VALUES (1, 'a')) UNION ALL (VALUES (2, 'b')) EXCEPT SELECT 3, 'c' ORDER BY 1 LIMIT 10
--# samples -> answered
SELECT * FROM range(1000) USING SAMPLE 10 ROWS
--# positional join, lateral, exists -> answered
SELECT * FROM range(3) a POSITIONAL JOIN range(3) b, LATERAL (SELECT a.range + 1 AS c) WHERE EXISTS (FROM hosts)
--# COLUMNS and EXCLUDE -> answered
SELECT max(COLUMNS('.*_celsius')) FROM latest.gpu_1s
--# star with replace -> answered
SELECT * EXCLUDE (host) REPLACE (upper(device) AS device) FROM latest.gpu_1s
--# json -> answered
SELECT to_json({'a': 1}), '{"a": [1]}'::JSON -> 'a' ->> 0, json_extract('{"a": 1}', '$.a')
--# a semicolon and a comment at the end -> answered
FROM hosts; -- that is all
--# who runs what -> answered
SELECT job, hosts, gpus_count FROM ops.jobs
--# extract and intervals -> answered
SELECT extract(epoch FROM INTERVAL 1 HOUR), age(TIMESTAMP '2026-01-01', TIMESTAMP '2025-01-01'), strftime(TIMESTAMP '2026-01-01', '%H:%M'), to_seconds(90), epoch_ms(1000)
--# time zones -> answered
SELECT TIMESTAMPTZ '2026-01-01 00:00:00+00' AT TIME ZONE 'Europe/Berlin', timezone('UTC', now())
--# names that DuckDB has views of, too -> answered
WITH views AS (SELECT 1 AS a), columns AS (SELECT 2 AS b) FROM views, columns
--# what a client asks first -> answered
SELECT n.nspname, c.relname, a.attname FROM pg_catalog.pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
--# columns as the standard has them -> answered
SELECT table_name, column_name, data_type FROM information_schema.columns
