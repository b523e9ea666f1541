-- Version 4: each host's wall clock against the aggregator's.
CREATE TABLE clocks (
    host VARCHAR, offset_seconds DOUBLE, error_seconds DOUBLE, measured TIMESTAMP
);
COMMENT ON TABLE clocks IS
    'each host''s wall clock against the aggregator''s, as last measured (written when it changes by 0.1 s, and every 5 minutes): offset_seconds is how far it is ahead, negative: behind; error_seconds is the error of that, NULL in the first ten minutes; beyond 2 s readings are stored under the aggregator''s time';
COMMENT ON COLUMN clocks.offset_seconds IS 'how far the host''s clock is ahead of the aggregator''s; negative: behind';
COMMENT ON COLUMN clocks.error_seconds IS 'error of the offset: the difference of the last two spans of ten minutes, plus the drift of a crystal in one';
COMMENT ON COLUMN clocks.measured IS 'time of measurement, by the aggregator''s clock';
