"""Polars: frames of about the given mebibytes, grouped, joined and sorted by its threads. Prints the answers."""

import sys

import polars as pl

mebibytes = int(sys.argv[1])
rows = mebibytes * 10000
number = pl.int_range(rows, dtype=pl.UInt64, eager=True)
mix = lambda series, seed: (series * 0x9E3779B97F4A7C1 + seed) % 1000003
frame = pl.DataFrame(
    {
        "customer": mix(number, 1) % (rows // 20),
        "place": mix(number, 2) % 1000,
        "amount": mix(number, 3).cast(pl.Int64),
    }
).with_columns(note=pl.format("order {} of {}", pl.col("amount"), pl.col("customer")))
print("built", frame.height, frame["amount"].sum(), frame["note"].str.len_bytes().sum())
groups = (
    frame.group_by("customer", pl.col("place") % 20)
    .agg(pl.col("amount").sum(), pl.col("note").max(), pl.len())
    .sort("customer", "place")
)
print("groups", groups.height, groups["amount"].sum(), groups["note"].max(), groups["len"].max())
customers = pl.DataFrame({"customer": pl.int_range(rows // 20, dtype=pl.UInt64, eager=True)}).with_columns(
    name=pl.format("name {}", mix(pl.col("customer"), 9))
)
joined = frame.join(customers, on="customer").filter(pl.col("place") < 900)
print("joined", joined.height, joined["amount"].sum(), (joined["note"] + joined["name"]).max())
ordered = joined.sort("amount", "note", "name")
print("sorted", ordered["note"][0], ordered["note"][ordered.height // 2], ordered["note"][-1])
print("hash", ordered.select("amount", "place").with_row_index().select((pl.col("amount") * pl.col("index")).sum()).item())
