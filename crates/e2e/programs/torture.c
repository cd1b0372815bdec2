/* torture SEED THREADS OPERATIONS: each thread maps, writes, verifies, discards, moves, protects, forks and frees
 * at random, drawn from the seed. The expected content of every page follows from its version, in shared memory,
 * which is not swapped. A wrong word ends the run with the seed, the page and both values. */
#include "check.h"

#include <sys/socket.h>

#define REGIONS 6
#define MOST_PAGES 4096UL /* 16 MiB */

struct region {
    char *base;
    size_t pages;
    uint32_t *versions; /* 0: the page is zero */
    uint64_t seed;
    int readable, writable;
};

struct thread {
    pthread_t handle;
    uint64_t random, seed;
    struct region regions[REGIONS];
    uint64_t operation;
    int number;
    int pipe[2];
};

static uint64_t seed, operations;
static pthread_mutex_t forking = PTHREAD_MUTEX_INITIALIZER;

static uint64_t draw(struct thread *t, uint64_t below)
{
    t->random = mix(t->random);
    return t->random % below;
}

static uint64_t expected(const struct region *r, size_t page, size_t index)
{
    return r->versions[page] ? word(r->seed + r->versions[page], page * 512 + index) : 0;
}

static void verify_page(struct thread *t, struct region *r, size_t page)
{
    const uint64_t *words = (void *)(r->base + page * PAGE);
    for (size_t i = 0; i < 512; i++) {
        uint64_t have = words[i], want = expected(r, page, i);
        errno = 0;
        CHECK(have == want, "seed %lu thread %d operation %lu: page %zu of %zu at %p word %zu: %lx, not %lx (version %u)",
              seed, t->number, t->operation, page, r->pages, (void *)words, i, have, want, r->versions[page]);
    }
}

static void write_page(struct region *r, size_t page)
{
    uint64_t *words = (void *)(r->base + page * PAGE);
    r->versions[page]++;
    for (size_t i = 0; i < 512; i++)
        words[i] = expected(r, page, i);
}

static void forget(struct region *r)
{
    CHECK(munmap(r->base, r->pages * PAGE) == 0, "munmap");
    memset(r->versions, 0, MOST_PAGES * 4);
    r->base = NULL;
}

static void create(struct thread *t, struct region *r)
{
    r->pages = 1 + draw(t, MOST_PAGES);
    r->base = map(r->pages * PAGE);
    if (draw(t, 4) == 0)
        madvise(r->base, r->pages * PAGE, MADV_HUGEPAGE);
    r->seed = mix(t->random);
    r->readable = r->writable = 1;
}

static void resize(struct thread *t, struct region *r)
{
    size_t pages = 1 + draw(t, MOST_PAGES);
    char *base = mremap(r->base, r->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    CHECK(base != MAP_FAILED, "mremap from %zu to %zu pages", r->pages, pages);
    for (size_t i = pages; i < r->pages; i++)
        r->versions[i] = 0;
    r->base = base;
    r->pages = pages;
}

static void relocate(struct region *r)
{
    char *space = mmap(NULL, r->pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(space != MAP_FAILED, "reserving");
    char *base = mremap(r->base, r->pages * PAGE, r->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, space);
    CHECK(base == space, "mremap to a fixed place");
    r->base = base;
}

static void fork_and_verify(struct thread *t)
{
    /* One at a time: the limit is shared, the machine is small. */
    pthread_mutex_lock(&forking);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        for (int i = 0; i < REGIONS; i++) {
            struct region *r = &t->regions[i];
            /* The versions are shared with the parent, which does not touch them now. */
            for (size_t page = 0; r->base && r->readable && page < r->pages; page += 1 + page % 7)
                verify_page(t, r, page);
            if (r->base && r->writable)
                fill(r->base, r->pages * PAGE / 2, 666);
        }
        _exit(0);
    }
    int code = reap(pid);
    pthread_mutex_unlock(&forking);
    CHECK(code == 0, "seed %lu thread %d operation %lu: the child ended with %d", seed, t->number, t->operation, code);
}

/* Through the kernel: the page goes into a pipe and is read back into another page. */
static void copy_through_pipe(struct thread *t, struct region *r, size_t page)
{
    char copy[PAGE];
    CHECK(write(t->pipe[1], r->base + page * PAGE, PAGE) == (ssize_t)PAGE, "write from page %zu", page);
    CHECK(read(t->pipe[0], copy, PAGE) == (ssize_t)PAGE, "read");
    for (size_t i = 0; i < 512; i++)
        CHECK(((uint64_t *)copy)[i] == expected(r, page, i), "seed %lu thread %d operation %lu: word %zu of page %zu through a pipe",
              seed, t->number, t->operation, i, page);
    if (r->writable) {
        r->versions[page]++;
        for (size_t i = 0; i < 512; i++)
            ((uint64_t *)copy)[i] = expected(r, page, i);
        CHECK(write(t->pipe[1], copy, PAGE) == (ssize_t)PAGE, "write");
        CHECK(read(t->pipe[0], r->base + page * PAGE, PAGE) == (ssize_t)PAGE, "read into page %zu", page);
    }
}

static void step(struct thread *t)
{
    struct region *r = &t->regions[draw(t, REGIONS)];
    if (!r->base) {
        create(t, r);
        return;
    }
    size_t first = draw(t, r->pages), count = 1 + draw(t, r->pages - first);
    uint64_t kind = draw(t, 100);
    if (kind < 35) {
        for (size_t i = 0; r->writable && i < count; i++)
            write_page(r, first + i);
    } else if (kind < 70) {
        for (size_t i = 0; r->readable && i < count; i++)
            verify_page(t, r, first + i);
    } else if (kind < 76) {
        for (size_t i = 0; r->readable && i < 50; i++)
            verify_page(t, r, draw(t, r->pages));
    } else if (kind < 83) {
        count = 1 + count / 4;
        CHECK(madvise(r->base + first * PAGE, count * PAGE, MADV_DONTNEED) == 0, "MADV_DONTNEED");
        for (size_t i = 0; i < count; i++)
            r->versions[first + i] = 0;
    } else if (kind < 88) {
        resize(t, r);
    } else if (kind < 91) {
        relocate(r);
    } else if (kind < 94) {
        int way = draw(t, 3);
        int protection = way == 0 ? PROT_NONE : way == 1 ? PROT_READ : PROT_READ | PROT_WRITE;
        CHECK(mprotect(r->base, r->pages * PAGE, protection) == 0, "mprotect");
        r->readable = way > 0;
        r->writable = way > 1;
    } else if (kind < 96) {
        if (r->readable)
            copy_through_pipe(t, r, first);
    } else if (kind < 97) {
        fork_and_verify(t);
    } else {
        forget(r);
    }
}

static void *life(void *argument)
{
    struct thread *t = argument;
    for (t->operation = 0; t->operation < operations; t->operation++)
        step(t);
    for (int i = 0; i < REGIONS; i++) {
        struct region *r = &t->regions[i];
        if (!r->base)
            continue;
        CHECK(mprotect(r->base, r->pages * PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect");
        for (size_t page = 0; page < r->pages; page++)
            verify_page(t, r, page);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "torture SEED THREADS OPERATIONS");
    seed = strtoull(argv[1], NULL, 0);
    int count = atoi(argv[2]);
    operations = strtoull(argv[3], NULL, 0);
    printf("seed %lu, %d threads, %lu operations each\n", seed, count, operations);
    fflush(stdout);
    static struct thread threads[16];
    CHECK(count >= 1 && count <= 16, "1 to 16 threads");
    for (int i = 0; i < count; i++) {
        struct thread *t = &threads[i];
        t->number = i;
        t->random = mix(seed * 31 + i);
        CHECK(pipe(t->pipe) == 0, "pipe");
        for (int j = 0; j < REGIONS; j++) {
            t->regions[j].versions = mmap(NULL, MOST_PAGES * 4, PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            CHECK(t->regions[j].versions != MAP_FAILED, "versions");
        }
        CHECK(pthread_create(&t->handle, NULL, life, t) == 0, "a thread");
    }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i].handle, NULL);
    printf("all as it should be\n");
    return 0;
}
