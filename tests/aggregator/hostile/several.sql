--# two statements -> refused: not 2 statements
SELECT 1; SELECT 2
--# a write after a read -> refused: not 2 statements
SELECT 1; DROP TABLE hosts
--# leave the transaction first -> refused: not 3 statements
COMMIT; DELETE FROM hosts; SELECT 1
--# the second behind a comment -> refused: not 2 statements
SELECT 1 /* ; */ ; -- nothing here
DROP TABLE hosts
--# the second behind a nested comment -> refused:
SELECT 1 /* /* */ ; DROP TABLE hosts; */ ; DROP TABLE hosts
--# nothing -> refused: not 0 statements
;
--# only a comment -> refused: not 0 statements
-- FROM hosts
--# a comment that is never closed -> refused: Parser error
SELECT 1 /* DROP TABLE hosts
--# the word behind a comment -> refused: not DROP
/* SELECT */ DROP /* SELECT */ TABLE hosts
--# explain with a comment between -> refused: statements that write cannot be explained
EXPLAIN /* SELECT 1 */ ANALYZE -- SELECT
DELETE FROM hosts
--# explain of explain -> refused:
EXPLAIN EXPLAIN DELETE FROM hosts
--# explain, then another statement -> refused: not 2 statements
EXPLAIN SELECT 1; DROP TABLE hosts
--# full-width letters -> refused: Parser error
ＤＲＯＰ TABLE hosts
--# a no-break space -> refused: not DROP
DROP TABLE hosts
--# a zero-width space within a word -> refused: Parser error
DR​OP TABLE hosts
--# right to left marks -> refused: not DROP
DROP TABLE "‮hosts‬"
--# a function behind quotes and another case -> refused: the function write_log is not allowed
SELECT "WRITE_LOG"('x')
--# a function behind its schema -> refused: the function write_log is not allowed
SELECT main.write_log('x')
--# a function behind its catalog -> refused: the function write_log is not allowed
SELECT system.main.write_log('x')
--# a function as a method -> refused: the function write_log is not allowed
SELECT ('x').write_log()
--# a function by a name in unicode escapes -> refused:
SELECT U&"\0077rite_log"('x')
--# a function within a lambda -> refused: the function write_log is not allowed
SELECT list_transform([1], lambda x: write_log(x::VARCHAR))
--# a function in an order -> refused: the function write_log is not allowed
FROM hosts ORDER BY write_log(host)
--# a function in a lateral join -> refused: the function write_log is not allowed
FROM hosts, LATERAL (SELECT write_log(host))
--# a function in a filter of an aggregate -> refused: the function write_log is not allowed
SELECT count(*) FILTER (write_log(host) IS NULL) FROM hosts
--# a function in a window -> refused: the function write_log is not allowed
SELECT sum(1) OVER (PARTITION BY write_log(host)) FROM hosts
--# a function in an argument of ours -> refused: the function write_log is not allowed
FROM ops.explain(write_log('x'))
--# a function in explain analyze -> refused: the function write_log is not allowed
EXPLAIN ANALYZE SELECT write_log('x')
--# a function in summarize -> refused: the function write_log is not allowed
SUMMARIZE SELECT write_log('x')
--# a function in describe -> refused: the function write_log is not allowed
DESCRIBE SELECT write_log('x')
--# a function in a pivot -> refused: the function write_log is not allowed
PIVOT hosts ON host IN ('a') USING max(write_log(host))
--# a function in values -> refused: the function write_log is not allowed
VALUES (write_log('x'))
--# a function in a limit -> refused: the function write_log is not allowed
FROM hosts LIMIT (SELECT write_log('1')::INT)
--# our schema in front of theirs -> refused:
FROM ops.read_text('/etc/passwd')
--# a prepared statement -> refused: not PREPARE
PREPARE gone AS DELETE FROM hosts
--# execute -> refused: not EXECUTE
EXECUTE gone
--# deallocate -> refused: not DEALLOCATE
DEALLOCATE gone
--# a parameter that nobody gives -> refused:
SELECT $1
--# a NUL byte -> refused: a NUL byte is not SQL
SELECT 1 {{'\0' * 1}} ; DROP TABLE hosts
--# letters of three bytes where DuckDB cuts its message -> refused:
SELECT FROM{{'\ufffd' * 300}}(
