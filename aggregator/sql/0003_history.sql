-- Version 3: history. Readings leave this file as Parquet once their five minutes are over; `segments`
-- says which files hold what, and only what it says is read. Tables of whole hours that an earlier
-- version made stay readable, and leave in the same way.
CREATE SCHEMA live;      -- views: readings that are still in this file
CREATE SCHEMA past;      -- views: readings that are in Parquet
CREATE SCHEMA rollups;   -- views: readings by minute and by hour
CREATE SCHEMA history;   -- where parts have been

CREATE TABLE segments (
    grain VARCHAR, table_name VARCHAR, bucket VARCHAR, path VARCHAR, first_time TIMESTAMP,
    last_time TIMESTAMP, rows UBIGINT, bytes UBIGINT, crc32 UINTEGER, columns VARCHAR,
    recorded TIMESTAMP, gone TIMESTAMP
);
COMMENT ON TABLE segments IS
    'Parquet files of the data folder: grain raw, 1m, 1h or tail; bucket is the arrival time, to 5 minutes, the hour or the day; gone: to be deleted';

CREATE TABLE parts (
    kind VARCHAR, device VARCHAR, host VARCHAR, slot VARCHAR, first_seen TIMESTAMP,
    last_seen TIMESTAMP, present BOOLEAN
);
COMMENT ON TABLE parts IS
    'which part was in which slot of which host, as registered by hosts; present: in the last registration';
