-- Definitions are compressed with lz4 where PostgreSQL has it, and stay in their rows as long as they fit into a page: what a create and
-- a claim pay for a definition of some kilobytes was mostly for compressing it, and for a second table.
SET LOCAL lock_timeout = '5s';

ALTER TABLE task_definitions ALTER COLUMN definition SET STORAGE MAIN;
DO $$ BEGIN
    IF (SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression') THEN
        ALTER TABLE task_definitions ALTER COLUMN definition SET COMPRESSION lz4;
    END IF;
END $$;
