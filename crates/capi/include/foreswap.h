/* Regions of memory beyond RAM (Linux, x86-64).
 *
 * A program opens the engine once, with a limit, and maps regions. A region is memory like that of mmap: it begins with
 * zeros, stays at its address, and is used by ordinary loads and stores, by any thread, and by system calls. The pages
 * in use are in RAM, within the limit, and the others on a swap area. All other memory of the program is untouched, and
 * does not count.
 *
 * Children of fork() have the regions as they were at that moment and share the limit. A program that `foreswap run` has
 * started is managed already: there a region is ordinary memory, under the limit of that run.
 *
 * Every call may come from any thread, but not from a signal handler. Sizes are in bytes. A call that fails returns -1
 * (NULL in the case of foreswap_map), and foreswap_error() says why.
 *
 *     cc example.c $(pkg-config --cflags --libs foreswap)
 */
#ifndef FORESWAP_H
#define FORESWAP_H

#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Starts the engine of this process. `options` are words of `foreswap run`, ended by NULL:
 *
 *     const char *options[] = {"--memory=1G", "--swap=/mnt/nvme", NULL};
 *
 * --memory is required. Also possible: --swap, --swap-size, --thp, --readahead, --max-window, --reclaim, --full-timeout,
 * --load-control, --io, --helpers, --metrics, --metrics-file, --trace and --quiet; `foreswap run --help` explains them.
 * The command `foreswap` must be installed: beside this library, in a folder bin above it, or on PATH. The variable
 * FORESWAP_COMMAND names another one.
 *
 * The engine runs until the program ends. Opening it again with the same options does nothing; with others it is an
 * error. Returns 0 or -1. */
int foreswap_open(const char *const *options);

/* Whether the engine was started: 1 or 0. */
int foreswap_is_open(void);

/* Maps a region of `bytes` zeros, rounded up to whole pages. It is aligned to a page, and from 2 MiB on to 2 MiB. Returns
 * its address, or NULL. */
void *foreswap_map(size_t bytes);

/* Unmaps the region at `address`, which foreswap_map has returned. Nobody may use it any more. Returns 0 or -1. */
int foreswap_unmap(void *address);

/* What the program knows of its accesses to come. */
enum foreswap_advice {
    /* Nothing: foreswap finds out (the default). */
    FORESWAP_NORMAL = 0,
    /* In no order: nothing is read ahead. */
    FORESWAP_RANDOM = 1,
    /* In order: pages are read ahead, and evicted soon after they were used. */
    FORESWAP_SEQUENTIAL = 2,
    /* Soon: read it now, as far as there is room. */
    FORESWAP_WILLNEED = 3,
    /* Not soon: evict it before other memory. */
    FORESWAP_COLD = 4,
    /* Not soon: evict it now. */
    FORESWAP_PAGEOUT = 5,
    /* Never: its content is not needed, and it has zeros from now on. Whole pages only. */
    FORESWAP_DISCARD = 6
};

/* Advice for `bytes` at `address`, which are inside of a region. Returns 0 or -1. Use this instead of madvise: the engine
 * does not see calls of that. */
int foreswap_advise(void *address, size_t bytes, int advice);

/* Changes the limit from now on: "512M", "40%", "auto", "512M..8G". Returns 0 or -1. */
int foreswap_set_memory(const char *memory);

/* Writes figures of this process and of its children to `buffer`, as a JSON object with the keys of `foreswap ps --json`:
 * as far as they fit in `bytes`, and ended by a zero. Returns the length of the whole text without the zero, or -1. A
 * buffer of 64 KiB is enough for a few processes. */
ssize_t foreswap_stats(char *buffer, size_t bytes);

/* Why the last call of this thread that failed has failed; "" if none has. The text stays until the next failure in this
 * thread. */
const char *foreswap_error(void);

#ifdef __cplusplus
}
#endif

#endif
