-- Version 16: what earlier runs say of each run, and the hosts on which other workloads were slow, too.
ALTER TABLE runs ADD COLUMN verdict VARCHAR;
COMMENT ON COLUMN runs.verdict IS
    'what earlier runs of its workload say of it: never seen, not comparable, as before, slower, slower: a host, slower: the workload changed; NULL: of before version 16';
ALTER TABLE runs ADD COLUMN slow_hosts VARCHAR[];
COMMENT ON COLUMN runs.slow_hosts IS 'its hosts on which runs of other workloads were slow, too, where that explains it';
