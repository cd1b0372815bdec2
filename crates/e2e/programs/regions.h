/* What the programs about regions of memory beyond RAM have in common. */
#include "check.h"

#include <foreswap.h>

#define LIMIT (16 * MIB)
#define SIZE (48 * MIB)

static void open_engine(void)
{
    const char *options[] = {"--memory=16M", NULL};
    CHECK(foreswap_open(options) == 0, "foreswap_open: %s", foreswap_error());
}

static char *region(size_t size)
{
    char *p = foreswap_map(size);
    CHECK(p, "foreswap_map: %s", foreswap_error());
    return p;
}

static void unmap(void *p)
{
    CHECK(foreswap_unmap(p) == 0, "foreswap_unmap: %s", foreswap_error());
}

/* A number of the figures, the first of its name from `after` on. */
static uint64_t figure(const char *after, const char *name)
{
    static char text[64 << 10];
    char key[64];
    CHECK(foreswap_stats(text, sizeof text) > 0, "foreswap_stats: %s", foreswap_error());
    const char *at = strstr(text, after);
    snprintf(key, sizeof key, "\"%s\":", name);
    at = at ? strstr(at, key) : NULL;
    CHECK(at, "%s in %s", name, text);
    return strtoull(at + strlen(key), NULL, 10);
}

static uint64_t total(const char *name)
{
    return figure("\"totals\"", name);
}

/* A filled region, most of which is swapped out. */
static char *swapped(uint64_t seed)
{
    if (!foreswap_is_open())
        open_engine();
    char *p = region(SIZE);
    fill(p, SIZE, seed);
    CHECK(present_pages(p, SIZE) * PAGE <= LIMIT, "%zu pages present", present_pages(p, SIZE));
    return p;
}
