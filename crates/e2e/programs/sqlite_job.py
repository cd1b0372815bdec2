"""SQLite with a database in memory of about MEBIBYTES: inserts, an index, updates, joins, a vacuum
and an integrity check. Prints what the queries say."""

import hashlib
import sqlite3
import sys

mebibytes = int(sys.argv[1])
database = sqlite3.connect(":memory:")
database.execute("PRAGMA cache_size = -1000000")
database.execute("PRAGMA temp_store = MEMORY")
database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, kind INTEGER, name TEXT, body BLOB)")
rows = mebibytes * 2**20 // 640
state = 12345


def entries():
    global state
    for i in range(rows):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield i, state % 97, f"name-{state % 100003}", (b"%020d" % state) * 25


database.executemany("INSERT INTO item VALUES (?, ?, ?, ?)", entries())
database.execute("CREATE INDEX item_name ON item (name, kind)")
database.execute("UPDATE item SET body = body || name WHERE kind % 10 = 3")
database.execute("DELETE FROM item WHERE kind = 50")
queries = [
    "SELECT count(*), sum(length(body)), max(name) FROM item",
    "SELECT kind, count(*), sum(id) FROM item GROUP BY kind ORDER BY kind",
    "SELECT count(*) FROM item a JOIN item b ON a.name = b.name AND a.kind = b.kind WHERE a.id < b.id",
    "SELECT name FROM item ORDER BY name DESC, id LIMIT 50",
    "PRAGMA integrity_check",
]
for query in queries:
    print(hashlib.sha256(repr(database.execute(query).fetchall()).encode()).hexdigest())
whole = hashlib.sha256()
for row in database.execute("SELECT * FROM item ORDER BY id"):
    whole.update(repr(row).encode())
print(whole.hexdigest())
