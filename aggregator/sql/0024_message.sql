-- Version 24: one name per meaning before the first release. Texts for people are `message`, the time of a host's last report
-- is `last_seen`, and `declared_in` is the file and line of a declaration.
ALTER TABLE evidence RENAME COLUMN words TO message;
ALTER TABLE findings RENAME COLUMN words TO message;
ALTER TABLE models RENAME COLUMN words TO message;
ALTER TABLE job_verdicts RENAME COLUMN words TO message;
ALTER TABLE advice_decisions RENAME COLUMN words TO message;
ALTER TABLE advisories RENAME COLUMN words TO message;
ALTER TABLE advisories RENAME COLUMN state_words TO state_message;
ALTER TABLE scores RENAME COLUMN reason_words TO reason_message;
ALTER TABLE scores RENAME COLUMN heard TO last_seen;
ALTER TABLE signals RENAME COLUMN tells TO description;
ALTER TABLE own_health RENAME COLUMN tells TO description;
ALTER TABLE declared_expected RENAME COLUMN tells TO description;
ALTER TABLE declared_thresholds RENAME COLUMN tells TO description;
ALTER TABLE declared_expected RENAME COLUMN said_at TO declared_in;
ALTER TABLE declared_places RENAME COLUMN said_at TO declared_in;
ALTER TABLE declared_windows RENAME COLUMN said_at TO declared_in;
ALTER TABLE declared_overrides RENAME COLUMN said_at TO declared_in;
ALTER TABLE declared_costs RENAME COLUMN said_at TO declared_in;
ALTER TABLE models ALTER calibration TYPE STRUCT(predicted DOUBLE, observed DOUBLE)[]
    USING list_transform(calibration, lambda one: {'predicted': one['told'], 'observed': one['observed']});
-- Kept events and instructions of advice are JSON without blanks; a quote within a text is escaped there.
UPDATE advice_events SET body = replace(body, '"words":', '"message":') WHERE contains(body, '"words":');
UPDATE advice_decisions SET body = replace(body, '"words":', '"message":') WHERE contains(body, '"words":');
UPDATE advice_memory SET body = replace(replace(body, '"state_words":', '"state_message":'), '"words":', '"message":');
UPDATE events SET name = 'gpu.full_report' WHERE name = 'gpu.told_anew';
