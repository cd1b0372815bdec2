# A data frame: aggregated, merged, sorted. Prints figures that depend on all of it.
rows <- 900000
frame <- data.frame(id = seq_len(rows), group = (seq_len(rows) * 7919) %% 1009, value = ((seq_len(rows) * 31) %% 10007) / 7)
frame$name <- paste("name", frame$id %% 5003)
sums <- aggregate(value ~ group, data = frame, FUN = sum)
joined <- merge(frame, sums, by = "group", suffixes = c("", ".all"))
joined <- joined[order(joined$name, joined$id), ]
places <- seq(1, rows, by = 1000)
cat(sprintf("%.6f %.6f\n", sum(joined$value.all), sum(as.numeric(joined$id[places]) * places)))
