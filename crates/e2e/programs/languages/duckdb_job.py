"""DuckDB in memory: tables of about the given mebibytes, grouped, joined and sorted. Prints the answers."""

import sys

import duckdb

mebibytes = int(sys.argv[1])
database = duckdb.connect(":memory:", config={"threads": 2, "temp_directory": "", "memory_limit": "64GB"})
rows = mebibytes * 12000
ask = lambda query: print(*database.execute(query).fetchall())
database.execute(
    f"CREATE TABLE facts AS SELECT i AS id, hash(i) % {rows // 20} AS customer, hash(i + 7) % 1000 AS place, "
    f"(hash(i * 3) % 1000003)::BIGINT AS amount, 'order ' || hash(i)::VARCHAR || ' of ' || i AS note FROM range({rows}) t(i)"
)
database.execute(
    f"CREATE TABLE customers AS SELECT i AS customer, 'name ' || hash(i * 5)::VARCHAR AS name FROM range({rows // 20}) t(i)"
)
ask("SELECT count(*), sum(amount), min(note), max(note) FROM facts")
ask(
    "SELECT count(*), sum(s), sum(c), max(m) FROM (SELECT customer, place % 20 AS p, sum(amount) AS s, count(*) AS c, "
    "max(note) AS m FROM facts GROUP BY ALL)"
)
ask(
    "SELECT count(*), sum(length(name)), sum(amount), max(note || name) FROM facts JOIN customers USING (customer) "
    "WHERE place < 900"
)
ask("SELECT count(*), sum(a.amount - b.amount) FROM facts a JOIN facts b ON a.id = b.customer")
database.execute("CREATE TABLE sorted AS SELECT * FROM facts ORDER BY amount, note")
ask("SELECT bit_xor(hash(note)), sum(id) FROM sorted")
ask("SELECT list(note) FROM (SELECT note FROM sorted LIMIT 5 OFFSET 1000)")
database.execute("UPDATE facts SET amount = amount + 1 WHERE place % 3 = 0")
database.execute("DELETE FROM facts WHERE place % 7 = 0")
ask("SELECT count(*), sum(amount), bit_xor(hash(note)) FROM facts")
