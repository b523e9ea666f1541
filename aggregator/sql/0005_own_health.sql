-- Version 5: the aggregator's readings of itself, every 15 s, so that "when did it begin" can be asked.
CREATE TABLE own_health (time TIMESTAMP, figure VARCHAR, value DOUBLE, tells VARCHAR);
COMMENT ON TABLE own_health IS
    'the aggregator''s readings of itself, every 15 s; counters restart with each start';
