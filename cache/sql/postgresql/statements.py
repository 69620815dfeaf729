"""The statements on a table of records. Each carries many swaps, commits by itself, and holds no lock beyond its end.

All instants are Unix ms by the server's ``clock_timestamp()``, read anew for each row that is judged: a claim that comes late, or
waits for a lock, isn't made. Rows are inserted and locked in the order of their keys: no two statements wait for each other.
``LATERAL ... OFFSET 0``: each key is looked up by the index, whatever the planner takes the table's size for.
"""

from typing import Final

from oncegate.cache.sql.rows import HEAD_BYTES

SCHEMA: Final = 1
"""Kept as the table's comment, behind `MARK`. A table of a higher one is refused."""
MARK: Final = "oncegate records, schema "
LEAST_VERSION: Final = 130000

TABLES: Final = f"""\
CREATE TABLE IF NOT EXISTS oncegate_records (
    -- The record's look-up key: namespace, digest of the idempotency key, digest of its caller.
    key text COLLATE "C" PRIMARY KEY,
    -- The record, as docs/decisions/0001-storage-format.md has it. Compressed by nobody: bodies often are already.
    data bytea NOT NULL,
    -- Unix ms, by this server's clock, from which on the row is gone for every reader.
    ends_ms bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE oncegate_records ALTER COLUMN data SET STORAGE EXTERNAL;
-- For the sweep of what is gone.
CREATE INDEX IF NOT EXISTS oncegate_records_by_end ON oncegate_records (ends_ms);
COMMENT ON TABLE oncegate_records IS '{MARK}{SCHEMA}';
"""

NOW: Final = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

CLAIM: Final = f"""\
WITH given AS (
    SELECT * FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::bigint[]) AS g (key, data, ttl_ms, until_ms)
), made AS (
    INSERT INTO oncegate_records AS r (key, data, ends_ms)
    SELECT g.key, g.data, {NOW} + g.ttl_ms FROM given g WHERE g.until_ms = 0 OR {NOW} <= g.until_ms ORDER BY g.key COLLATE "C"
    ON CONFLICT (key) DO NOTHING RETURNING r.key
)
SELECT g.key, EXISTS (SELECT FROM made m WHERE m.key = g.key) AS made, r.data, r.ends_ms, {NOW} AS now_ms
FROM given g LEFT JOIN LATERAL (SELECT data, ends_ms FROM oncegate_records WHERE key = g.key OFFSET 0) r ON true"""
"""$1 keys, $2 bytes, $3 times to live (ms), $4 instants after which it is too late (0: none).

What is in the way is as it was when the statement began: a row that is neither made nor there came in between, and is read again.
A replay writes nothing."""

SWAP: Final = f"""\
WITH given AS (
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bytea[], $6::bigint[], $7::bigint[])
    AS g (key, expected, held, ends_ms, data, ttl_ms, until_ms)
), held AS MATERIALIZED (
    SELECT r.key FROM given g JOIN oncegate_records r ON r.key = g.key
    WHERE (g.until_ms = 0 OR {NOW} <= g.until_ms) AND CASE g.expected
        WHEN 1 THEN substr(r.data, 1, {HEAD_BYTES}) = g.held AND r.ends_ms > {NOW}
        WHEN 2 THEN r.data = g.held AND r.ends_ms = g.ends_ms AND r.ends_ms > {NOW}
        WHEN 3 THEN r.ends_ms = g.ends_ms AND r.ends_ms <= {NOW}
    END
    ORDER BY r.key FOR UPDATE OF r
), changed AS (
    UPDATE oncegate_records r SET data = COALESCE(g.data, r.data), ends_ms = {NOW} + g.ttl_ms
    FROM held h JOIN given g ON g.key = h.key WHERE r.key = h.key AND g.ttl_ms > 0 RETURNING r.key
), removed AS (
    DELETE FROM oncegate_records r USING held h JOIN given g ON g.key = h.key
    WHERE r.key = h.key AND g.ttl_ms = 0 RETURNING r.key
)
SELECT g.key, EXISTS (SELECT FROM changed m WHERE m.key = g.key) OR EXISTS (SELECT FROM removed m WHERE m.key = g.key) AS made,
    r.data, r.ends_ms, {NOW} AS now_ms
FROM given g LEFT JOIN LATERAL (SELECT data, ends_ms FROM oncegate_records WHERE key = g.key OFFSET 0) r ON true"""
"""$1 keys, $2 what is expected (`Expected`), $3 its bytes, $4 its end, $5 new bytes (null: as they are), $6 times to live (0: the
row goes), $7 as $4 of a claim."""

READ: Final = f"""\
SELECT g.key, false AS made, r.data, r.ends_ms, {NOW} AS now_ms FROM unnest($1::text[]) AS g (key)
LEFT JOIN LATERAL (SELECT data, ends_ms FROM oncegate_records WHERE key = g.key OFFSET 0) r ON true"""

PART: Final = f"""\
SELECT CASE WHEN $2::integer = 0 THEN data ELSE substr(data, 1, $2::integer) END AS data, length(data) AS size, ends_ms,
    {NOW} AS now_ms
FROM oncegate_records WHERE key = $1::text AND ends_ms > {NOW}"""

PARTS: Final = f"""\
SELECT r.key, CASE WHEN $2::integer = 0 THEN r.data ELSE substr(r.data, 1, $2::integer) END AS data, length(r.data) AS size,
    r.ends_ms, {NOW} AS now_ms
FROM unnest($1::text[]) AS g (key)
JOIN LATERAL (SELECT key, data, ends_ms FROM oncegate_records WHERE key = g.key OFFSET 0) r ON r.ends_ms > {NOW}"""

SCAN: Final = f"""\
SELECT key, ends_ms > {NOW} AS lives FROM oncegate_records
WHERE key > $1::text AND key >= $2::text AND key < $3::text ORDER BY key LIMIT $4::integer"""

SWEEP: Final = f"""\
WITH turn AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(7953764309) AS mine), gone AS MATERIALIZED (
    SELECT key FROM oncegate_records WHERE (SELECT mine FROM turn) AND ends_ms <= {NOW}
    ORDER BY ends_ms LIMIT $1::integer FOR UPDATE SKIP LOCKED
)
DELETE FROM oncegate_records r USING gone WHERE r.key = gone.key"""
"""$1 rows at most. One process sweeps at a time."""

LOOK: Final = f"""\
SELECT current_setting('server_version_num')::integer AS version, pg_is_in_recovery() AS is_standby,
    current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit,
    obj_description(to_regclass('oncegate_records')) AS mark, to_regclass('oncegate_records') IS NOT NULL AS is_there,
    {NOW} AS now_ms"""
SIZES: Final = """\
SELECT pg_total_relation_size('oncegate_records') AS used, current_database() AS name,
    current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit"""
RIGHTS: Final = """\
SELECT string_agg(p, ', ') FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p
WHERE NOT has_table_privilege('oncegate_records', p)"""

SESSION: Final = (
    "SET statement_timeout = {milliseconds}; SET jit = off; SET enable_seqscan = off; SET enable_bitmapscan = off; "
    "SET enable_hashjoin = off; SET enable_mergejoin = off"
)
"""A plan is kept from when the table was small, and serves it when it is large. What waits for a lock ends by itself."""
