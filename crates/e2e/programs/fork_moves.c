/* Forks of a program whose other threads move memory: mremap, and realloc, which is mremap inside the C library.
 * The child reads everything that it may: blocks whose lock the forking thread holds, and blocks whose flag says
 * that no thread is moving them. Most of the memory is swapped out and stays swapped, as it is not touched. */
#include "check.h"

#include <stdatomic.h>

#define FORKS 120
#define REGION (16 * MIB)
#define PRESSURE 48
#define SAMPLED 7 /* pages from one that a child reads to the next */

struct block {
    pthread_mutex_t lock;
    atomic_int moving;
    char *at;
    size_t size;
    uint64_t seed;
};

static atomic_int stop;

static void verify_sample(const struct block *block, size_t first, const char *what)
{
    for (size_t page = first % SAMPLED; page < block->size / PAGE; page += SAMPLED)
        VERIFY_PART(block->at, page * PAGE, PAGE, block->seed, what);
}

/* To its own place, as a program does that keeps its addresses in order. */
static char *moved_to_reserved(char *at, size_t size)
{
    char *space = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(space != MAP_FAILED, "reserving");
    CHECK(mremap(at, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, space) == space, "mremap");
    return space;
}

/* Over memory with content, which is gone then. */
static char *moved_over_other(char *at, size_t size)
{
    char *other = map(size);
    fill_part(other, 0, 16 * PAGE, 99);
    CHECK(mremap(at, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, other) == other, "mremap over memory");
    return other;
}

/* In two steps, the second half first. */
static char *moved_in_parts(char *at, size_t size)
{
    size_t half = size / 2 / PAGE * PAGE;
    char *space = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(space != MAP_FAILED, "reserving");
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    CHECK(mremap(at + half, size - half, size - half, flags, space + half) != MAP_FAILED, "second half");
    CHECK(mremap(at, half, half, flags, space) == space, "first half");
    return space;
}

/* Leaves an empty mapping behind, which is then unmapped. */
static char *moved_out_of_mapping(char *at, size_t size)
{
    char *to = mremap(at, size, size, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    CHECK(to != MAP_FAILED && to != at, "MREMAP_DONTUNMAP");
    CHECK(munmap(at, size) == 0, "munmap of what is left");
    return to;
}

static char *(*const ways[])(char *, size_t) = {moved_to_reserved, moved_over_other, moved_in_parts,
                                                moved_out_of_mapping};

/* No thread begins a move: a child can read all blocks. */
static atomic_int pause_moves;

/* Moves a block that no thread touches; a flag tells when it is whole. */
static void *wander(void *argument)
{
    struct block *block = argument;
    for (unsigned turn = 0; !stop; turn++) {
        while (atomic_load(&pause_moves) && !stop)
            usleep(200);
        /* Of a page that a fork copies, a thread may see the flag before the move, or MOVING, but never a flag
         * that is ahead of the addresses. */
        atomic_store(&block->moving, 1);
        block->at = ways[turn % 3](block->at, block->size);
        atomic_store(&block->moving, 0);
        usleep(mix(block->seed + turn) % 500);
    }
    return NULL;
}

/* Grows, shrinks, rewrites and moves a block under its lock. */
static void *work(void *argument)
{
    struct block *block = argument;
    for (unsigned turn = 0; !stop; turn++) {
        pthread_mutex_lock(&block->lock);
        size_t size = (256 + mix(block->seed * 77 + turn) % 256) * PAGE;
        size_t kept = size < block->size ? size : block->size;
        block->at = realloc(block->at, size);
        CHECK(block->at, "realloc");
        block->size = size;
        VERIFY_PART(block->at, 0, PAGE, block->seed, "the beginning");
        VERIFY_PART(block->at, kept - PAGE, PAGE, block->seed, "the end of what was there");
        fill_part(block->at, kept, size - kept, block->seed);
        pthread_mutex_unlock(&block->lock);
        usleep(mix(turn) % 1000);
    }
    return NULL;
}

/* Moves by realloc a block that no child reads. */
static void *noise(void *argument)
{
    size_t size = 0;
    char *at = NULL;
    for (unsigned turn = 0; !stop; turn++) {
        size_t now = (64 + mix((uintptr_t)argument + turn) % 1024) * PAGE;
        at = realloc(at, now);
        CHECK(at, "realloc");
        if (now > size)
            fill_part(at, size, now - size, 5);
        VERIFY_PART(at, 0, size < now ? size : now, 5, "what realloc moved");
        size = now;
    }
    free(at);
    return NULL;
}

#define WANDERERS 2
#define WORKERS 2

static void threads_move(void)
{
    static struct block still, carried, wandering[WANDERERS], working[WORKERS];
    struct block *large[] = {&still, &carried, &wandering[0], &wandering[1]};
    for (int i = 0; i < 2 + WANDERERS; i++) {
        struct block fresh = {PTHREAD_MUTEX_INITIALIZER, 0, map(REGION), REGION, 10 + i};
        fill(fresh.at, REGION, fresh.seed);
        *large[i] = fresh;
    }
    press(PRESSURE);
    size_t absent = 0;
    for (int i = 0; i < 2 + WANDERERS; i++)
        absent += large[i]->size / PAGE - present_pages(large[i]->at, large[i]->size);
    note("absent", absent);

    pthread_t threads[WANDERERS + WORKERS + 1];
    int started = 0;
    for (int i = 0; i < WANDERERS; i++)
        CHECK(pthread_create(&threads[started++], NULL, wander, &wandering[i]) == 0, "a thread");
    for (int i = 0; i < WORKERS; i++) {
        struct block fresh = {PTHREAD_MUTEX_INITIALIZER, 0, malloc(256 * PAGE), 256 * PAGE, 20 + i};
        fill(fresh.at, fresh.size, fresh.seed);
        working[i] = fresh;
        CHECK(pthread_create(&threads[started++], NULL, work, &working[i]) == 0, "a thread");
    }
    CHECK(pthread_create(&threads[started++], NULL, noise, (void *)1) == 0, "a thread");

    uint64_t settled = 0;
    for (int turn = 0; turn < FORKS; turn++) {
        int locked = turn % 2;
        for (int i = 0; locked && i < WORKERS; i++)
            pthread_mutex_lock(&working[i].lock);
        if (turn % 4 < 2)
            carried.at = ways[turn % 7 % 4](carried.at, carried.size);
        fflush(stdout);
        atomic_store(&pause_moves, turn % 3 == 0);
        if (turn % 3 == 0)
            usleep(2000);
        int told[2];
        CHECK(pipe(told) == 0, "pipe");
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            char seen = 0;
            verify_sample(&still, turn, "what never moved");
            verify_sample(&carried, turn, "what moved before the fork");
            for (int i = 0; i < WANDERERS; i++) {
                if (atomic_load(&wandering[i].moving))
                    continue;
                verify_sample(&wandering[i], turn, "what another thread had moved");
                seen++;
            }
            for (int i = 0; locked && i < WORKERS; i++)
                VERIFY(working[i].at, working[i].size, working[i].seed, "what realloc had moved");
            if (locked) {
                carried.at = ways[turn % 4](carried.at, carried.size);
                verify_sample(&carried, turn + 1, "what the child moved");
            }
            CHECK(write(told[1], &seen, 1) == 1, "telling");
            _exit(0);
        }
        atomic_store(&pause_moves, 0);
        if (turn % 4 >= 2)
            carried.at = ways[turn % 7 % 4](carried.at, carried.size);
        for (int i = 0; locked && i < WORKERS; i++)
            pthread_mutex_unlock(&working[i].lock);
        int code = reap(pid);
        errno = 0;
        CHECK(code == 0, "child %d ended with %d", turn, code);
        char seen = 0;
        CHECK(read(told[0], &seen, 1) == 1, "hearing");
        settled += seen;
        close(told[0]);
        close(told[1]);
    }
    note("settled", settled);
    stop = 1;
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2 + WANDERERS; i++)
        VERIFY(large[i]->at, large[i]->size, large[i]->seed, "in the end");
    for (int i = 0; i < WORKERS; i++)
        VERIFY(working[i].at, working[i].size, working[i].seed, "in the end, by realloc");
}

int main(int argc, char **argv)
{
    static const struct part parts[] = {{"threads_move", threads_move}};
    return run_part(parts, 1, argc, argv);
}
