-- Version 16: what earlier runs say of each run, and the hosts on which other workloads were slow, too.
ALTER TABLE runs ADD COLUMN verdict VARCHAR;
COMMENT ON COLUMN runs.verdict IS
    'comparison with earlier runs of its workload: never seen, not comparable, as before, slower, slower: a host, slower: the workload changed; NULL: from before version 16';
ALTER TABLE runs ADD COLUMN slow_hosts VARCHAR[];
COMMENT ON COLUMN runs.slow_hosts IS 'its hosts on which other workloads were slow too, if that explains it';
