-- Version 2: an event that grows (a storm of one incident), its forms, who is named in it, what was
-- decoded; and what ends a finding. Columns are added only: a reader of version 1's columns finds them.
ALTER TABLE events ADD COLUMN revision UINTEGER DEFAULT 0;
ALTER TABLE events ADD COLUMN count UBIGINT DEFAULT 1;
ALTER TABLE events ADD COLUMN last_time TIMESTAMP;
ALTER TABLE events ADD COLUMN last_boottime_ns UBIGINT;
ALTER TABLE events ADD COLUMN forms VARCHAR[];
ALTER TABLE events ADD COLUMN forms_count UINTEGER DEFAULT 0;
ALTER TABLE events ADD COLUMN process_id UINTEGER;
ALTER TABLE events ADD COLUMN process_name VARCHAR;
ALTER TABLE events ADD COLUMN attributes MAP(VARCHAR, VARCHAR);
UPDATE events SET last_time = time, last_boottime_ns = boottime_ns, forms = [], attributes = MAP {};
COMMENT ON TABLE events IS
    'events of hosts: XIDs, kernel messages, links, changed outcomes of collectors; one row per incident, its last revision';

ALTER TABLE findings ADD COLUMN clears_when VARCHAR DEFAULT '';
COMMENT ON TABLE findings IS
    'findings: faults that last until cleared; cleared is NULL while active, clears_when gives the condition that clears it';
