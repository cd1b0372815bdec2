# A database in memory: filled, indexed, grouped and joined. Prints a digest.
import hashlib
import random
import sqlite3

ROWS = 900_000

numbers = random.Random(3)
base = sqlite3.connect(":memory:")
base.execute("create table sales (id integer primary key, shop integer, item integer, price real, note text)")
rows = ((numbers.randrange(500), numbers.randrange(20_000), numbers.random(), f"note {i} {i * 7919}") for i in range(ROWS))
base.executemany("insert into sales (shop, item, price, note) values (?, ?, ?, ?)", rows)
base.execute("create index by_item on sales (item, price)")
base.execute("create table items (item integer primary key, name text)")
base.executemany("insert into items values (?, ?)", ((i, f"item {i}") for i in range(20_000)))
digest = hashlib.sha256()
for query in (
    "select shop, count(*), sum(price) from sales group by shop order by shop",
    "select name, max(price) from sales join items using (item) group by item order by 2 desc limit 1000",
    "select note from sales where shop = 17 order by note",
):
    for row in base.execute(query):
        digest.update(repr(row).encode())
base.execute("update sales set price = price * 2 where item % 10 = 3")
digest.update(repr(base.execute("select total(price) from sales").fetchall()).encode())
print(digest.hexdigest())
