# Group-by, join and sort of frames. Prints a digest.
import hashlib

import polars

ROWS = 2_000_000
frame = polars.DataFrame({"id": range(ROWS)}).with_columns(
    (polars.col("id") * 7919 % 1009).alias("group"),
    (polars.col("id") * 104729 % 1_000_003 / 1000).alias("value"),
    ("name " + (polars.col("id") % 5003).cast(polars.String)).alias("name"),
)
grouped = frame.group_by("group").agg(polars.col("value").max(), polars.col("id").sum()).sort("group")
joined = frame.join(grouped, on="group", suffix="_of_group").sort(["name", "id"])
digest = hashlib.sha256(grouped.write_csv().encode())
digest.update(joined.select(["id", "id_of_group"]).to_numpy().tobytes())
print(digest.hexdigest())
