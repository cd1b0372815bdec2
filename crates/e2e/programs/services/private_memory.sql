-- Sorts and hash tables in the server process' own memory; :rows rows.
\set ON_ERROR_STOP 1
SET work_mem = '2GB';
SET hash_mem_multiplier = 2;
SET maintenance_work_mem = '1GB';
SET max_parallel_workers_per_gather = 0;
SET enable_mergejoin = off;
SET enable_nestloop = off;
CREATE TABLE a AS SELECT g AS id, (g::bigint * 2654435761) % 1000003 AS k, md5(g::text) AS v FROM generate_series(1, :rows) g;
CREATE TABLE b AS SELECT (g::bigint * 40503) % 1000003 AS k, md5((g * 7)::text) AS w FROM generate_series(1, :rows) g;
ANALYZE;
-- A sort and an aggregate of one long value.
SELECT count(*), md5(string_agg(x, ',' ORDER BY n)) FROM (SELECT row_number() OVER (ORDER BY v) n, v || k AS x FROM a) s;
-- A hash join, and groups in a hash table.
SELECT count(*), sum(hashtext(a.v || b.w)::bigint) FROM a JOIN b USING (k);
SELECT count(*), sum(c) FROM (SELECT v, count(*) AS c, max(k) FROM a GROUP BY v) s;
CREATE INDEX i ON a (v, k);
SELECT md5(string_agg(id::text, ',' ORDER BY v, k)) FROM a;
