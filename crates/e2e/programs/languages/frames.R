# Data frames of about the given mebibytes: aggregate, merge, sort, a linear model, and forked workers
# (parallel) that read and change what they share. Prints figures.
mebibytes <- as.integer(commandArgs(trailingOnly = TRUE)[1])
set.seed(20)
rows <- mebibytes * 6000L
frame <- data.frame(
  group = sample(1000L, rows, replace = TRUE),
  kind = sample(c("red", "green", "blue", "none"), rows, replace = TRUE),
  x = rnorm(rows), y = runif(rows), stringsAsFactors = FALSE)
frame$name <- sprintf("%s %d", frame$kind, sample(rows %/% 10L, rows, replace = TRUE))
say <- function(...) cat(..., sep = " ", fill = FALSE, "\n")
say("built", nrow(frame), format(sum(frame$x), digits = 12), sum(nchar(frame$name)))
means <- aggregate(cbind(x, y) ~ group + kind, data = frame, FUN = mean)
say("aggregate", nrow(means), format(sum(means$x * means$group), digits = 12))
counts <- tapply(frame$y, frame$group, length)
say("tapply", sum(counts * as.integer(names(counts))))
order <- order(frame$name, frame$x)
sorted <- frame[order, ]
say("sort", sorted$name[c(1, rows %/% 2L, rows)], format(sorted$x[rows %/% 3L], digits = 12))
joined <- merge(frame[seq(1L, rows, by = 4L), ], means, by = c("group", "kind"))
say("merge", nrow(joined), format(sum(joined$x.x - joined$x.y), digits = 6))
parts <- parallel::mclapply(1:3, function(worker) {
  own <- sorted
  own$y <- own$y + worker
  own$x[seq(worker, rows, by = 3L)] <- 0
  format(sum(own$x) + sum(own$y), digits = 12)
}, mc.cores = 3L)
say("workers", unlist(parts))
gc(full = TRUE) -> ignored
model <- lm(y ~ x + kind, data = frame)
say("lm", format(coef(model), digits = 8))
say("last", format(sum(sort(frame$x)[seq(1L, rows, by = 1000L)]), digits = 12), length(unique(frame$name)))
