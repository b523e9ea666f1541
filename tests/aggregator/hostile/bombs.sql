--# repeat: a string of 900 MB -> cut:
SELECT sum(length(repeat('x', 900000000))) FROM range(100)
--# repeat of repeat -> cut:
SELECT repeat(repeat('x', 1000000), 1000)
--# levenshtein ignores the interrupt -> cut:
SELECT levenshtein(repeat('a', 200000), repeat('b', 200000) || range) FROM range(100)
--# damerau_levenshtein -> cut:
SELECT damerau_levenshtein(repeat('a', 200000), repeat('b', 200000) || range) FROM range(100)
--# hamming of long strings, often -> cut:
SELECT sum(hamming(repeat('a', 10000000), repeat('b', 10000000) || (range * 0))) FROM range(100000)
--# a cross join of ranges -> cut:
SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range < 0
--# generate_series of all -> cut:
SELECT count(*) FROM generate_series(1, 9000000000000000000)
--# a recursive CTE without end -> cut:
WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT count(*) FROM t
--# a recursive CTE that doubles -> cut:
WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + y FROM t, (VALUES (0), (1)) AS v(y)) SELECT count(*) FROM t
--# a recursive CTE of longer and longer strings -> cut:
WITH RECURSIVE t(x) AS (SELECT 'xxxxxxxx' UNION ALL SELECT x || x FROM t) SELECT max(length(x)) FROM t
--# a list of sixty million -> cut:
SELECT range(600000000)
--# a list of lists -> cut:
SELECT list_transform(range(100000), lambda x: range(100000))
--# a reduction that copies -> cut:
SELECT list_reduce(range(10000000), lambda a, b: a + b + levenshtein(repeat('a', 20000), repeat('b', 20000)))
--# a struct in a list in a struct -> cut:
SELECT {'a': list_transform(range(10000000), lambda x: {'b': [x, x, x], 'c': repeat('y', 100)})}
--# unnest of unnest -> cut:
SELECT count(*) FROM (SELECT unnest(range(1000000)) AS a FROM range(1000000)) WHERE a < 0
--# a sort of all -> cut:
FROM range(1000000000) ORDER BY hash(range) LIMIT 1 OFFSET 900000000
--# a group of all -> cut:
SELECT count(*) FROM (SELECT hash(range) AS h FROM range(1000000000) GROUP BY h)
--# a distinct of all -> cut:
SELECT count(DISTINCT hash(range)) FROM range(1000000000)
--# a join of all with all -> cut:
SELECT count(*) FROM range(100000000) a JOIN range(100000000) b ON hash(a.range) = hash(b.range)
--# a window over all -> cut:
SELECT max(n) FROM (SELECT median(range) OVER (ORDER BY hash(range) ROWS 100000 PRECEDING) AS n FROM range(10000000))
--# string_agg of all -> cut:
SELECT length(string_agg(repeat('x', 10000), '')) FROM range(10000000)
--# list() of all -> cut:
SELECT length(list(range)) FROM range(1000000000)
--# a histogram of all -> cut:
SELECT cardinality(histogram(hash(range))) FROM range(1000000000)
--# a quantile of all -> cut:
SELECT quantile_cont(hash(range), 0.5) FROM range(1000000000)
--# regular expressions that replace, often -> cut:
SELECT sum(length(regexp_replace(repeat('ab', 5000000) || range, '(a|b)', 'xyz', 'g'))) FROM range(1000)
--# split into letters, often -> cut:
SELECT sum(length(string_split(repeat('a', 1000000) || range, ''))) FROM range(10000)
--# factorials of decimals do not end, a power does -> cut:
SELECT sum(length(format('{:>1000000}', range))) FROM range(10000000)
--# lpad to a gigabyte -> cut:
SELECT length(lpad('x', 1000000000, 'y')) FROM range(10)
--# json without end -> cut:
SELECT length(to_json(range(100000000))::VARCHAR)
--# analyze of a bomb -> cut:
EXPLAIN ANALYZE SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range < 0
--# summarize of a bomb -> cut:
SUMMARIZE SELECT hash(range) AS h FROM range(10000000000)
--# more rows than anybody reads -> cut rows:
FROM range(1000000000)
--# rows of a kilobyte -> cut rows:
SELECT repeat('x', 1000) FROM range(1000000)
--# one row of ten megabytes -> refused: one row takes
SELECT repeat('x', 10000000)
--# a schema of four megabytes -> cut:
SELECT {{'1 AS "%d_' * 1}}{{'x' * 200000}}"{{', 2' * 10000}}
--# parentheses -> refused: nested too deeply
SELECT {{'(' * 10000}}1{{')' * 10000}}
--# minus signs -> refused: nested too deeply
SELECT {{'- ' * 20000}}1
--# calls within calls -> refused: nested too deeply
SELECT {{'abs(' * 3000}}1{{')' * 3000}}
--# lists within lists -> refused: nested too deeply
SELECT {{'[' * 5000}}1{{']' * 5000}}
--# CASE within CASE -> refused: nested too deeply
SELECT {{'CASE WHEN true THEN ' * 2000}}1{{' END' * 2000}}
--# selects within selects -> refused:
{{'SELECT * FROM (' * 3000}}SELECT 1{{')' * 3000}}
--# types within types -> refused:
SELECT NULL::{{'STRUCT(a ' * 3000}}INT{{')' * 3000}}
--# casts of casts -> refused: nested too deeply
SELECT 1{{'::INT' * 5000}}
--# plus signs -> refused: nested too deeply
SELECT 1{{' + 1' * 5000}}
--# unions -> cut:
SELECT 1{{' UNION ALL SELECT 1' * 12000}}
--# a statement of half a megabyte -> refused: at most 262144 are allowed
SELECT '{{'x' * 500000}}'
--# five thousand ORs -> answered
SELECT 1 WHERE 1 = 2{{' OR 1 = 2' * 5000}}
--# a list of ten thousand numbers -> answered
FROM range(3) WHERE range IN (-1{{',%d' * 10000}})
--# a long string -> answered
SELECT length('{{'x' * 200000}}')
--# a pattern that would never end elsewhere -> answered
SELECT regexp_matches(repeat('a', 100000), '(a|aa)+$'), regexp_matches(repeat('a', 30), '(a*)*b')
--# a factorial -> refused: out of range
SELECT factorial(1000000)
--# a pattern of a thousand repeats of a thousand -> refused:
SELECT regexp_matches('a', '((a{1000}){1000}){1000}')
--# a date beyond time -> refused:
SELECT DATE '9999999-01-01' + INTERVAL 9999999999 YEAR
--# a sample that DuckDB cannot allocate, which it calls a fault of its own -> cut: of memory
SELECT reservoir_quantile(a, 0.5, 2000000000) FROM range(10) t(a)
