# Records in dictionaries: built, looked up, grouped, sorted and written out. Prints a digest.
import hashlib
import json
import random
import sys

COUNT = 320_000


def main():
    numbers = random.Random(7)
    table = {}
    for i in range(COUNT):
        table[f"key {i}"] = {"id": i, "weight": numbers.random(), "name": str(i * 7919), "tags": [i % 97, i % 89]}
    digest = hashlib.sha256()
    for _ in range(40_000):
        record = table[f"key {numbers.randrange(COUNT)}"]
        record["tags"].append(record["id"] % 7)
    groups = {}
    for record in table.values():
        groups.setdefault(record["tags"][0], []).append(record)
    for key in sorted(groups):
        group = sorted(groups[key], key=lambda record: record["weight"])
        digest.update(json.dumps(group[: len(group) // 4]).encode())
    for i in range(0, COUNT, 3):
        del table[f"key {i}"]
    digest.update(str(sum(len(record["tags"]) for record in table.values())).encode())
    print(digest.hexdigest())


if __name__ == "__main__":
    sys.exit(main())
