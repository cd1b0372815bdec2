/* malloc and related calls, and brk, with more in use than the limit allows. */
#include "check.h"

#include <malloc.h>

#define PRESSURE 128

static void brk_grow_and_shrink(void)
{
    size_t size = 96 * MIB, half = size / 2;
    char *start = sbrk(0);
    start = (char *)(((uintptr_t)start + PAGE - 1) & ~(PAGE - 1));
    CHECK(brk(start + size) == 0, "growing the heap");
    fill(start, size, 1);
    press(PRESSURE);
    note_absent("absent", start, size);
    VERIFY(start, size, 1, "the heap");
    press(PRESSURE);
    CHECK(brk(start + half) == 0, "shrinking the heap");
    VERIFY(start, half, 1, "what is left of the heap");
    CHECK(sbrk(half) == start + half, "growing again");
    VERIFY_ZERO(start + half, half, "the heap grown again");
    fill_part(start, half, half, 2);
    press(PRESSURE);
    VERIFY_PART(start, 0, half, 1, "lower half");
    VERIFY_PART(start, half, half, 2, "upper half");
    CHECK(brk(start) == 0, "giving the heap back");
}

struct block {
    struct block *next;
    uint64_t seed;
    size_t words;
    uint64_t data[];
};

static struct block *new_block(uint64_t seed, size_t words, struct block *next)
{
    struct block *block = malloc(sizeof *block + words * 8);
    CHECK(block, "malloc");
    block->next = next;
    block->seed = seed;
    block->words = words;
    for (size_t i = 0; i < words; i++)
        block->data[i] = word(seed, i);
    return block;
}

static void verify_block(const struct block *block)
{
    for (size_t i = 0; i < block->words; i++)
        CHECK(block->data[i] == word(block->seed, i), "word %zu of block %lu", i,
              (unsigned long)block->seed);
}

/* Small blocks in a list, half of them freed and allocated again. */
static void churn(uint64_t seed, size_t bytes, size_t most_words, int rounds)
{
    struct block *list = NULL;
    size_t used = 0;
    for (uint64_t n = 0; used < bytes; n++) {
        size_t words = 1 + mix(seed ^ n) % most_words;
        list = new_block(seed * 1000003 + n, words, list);
        used += sizeof *list + words * 8;
    }
    for (int round = 0; round < rounds; round++) {
        struct block **at = &list;
        size_t freed = 0;
        for (uint64_t n = 0; *at; n++) {
            struct block *block = *at;
            verify_block(block);
            if (mix(n ^ (seed + round)) & 1) {
                *at = block->next;
                freed += sizeof *block + block->words * 8;
                free(block);
            } else {
                at = &block->next;
            }
        }
        for (uint64_t n = 0; freed > 8 * most_words + sizeof *list; n++) {
            size_t words = 1 + mix(seed ^ n ^ ((uint64_t)round << 32)) % most_words;
            list = new_block(seed * 7777 + n, words, list);
            freed -= sizeof *list + words * 8;
        }
    }
    while (list) {
        struct block *block = list;
        verify_block(block);
        list = block->next;
        free(block);
    }
}

static void malloc_small(void)
{
    churn(3, 96 * MIB, 64, 1);
    CHECK(malloc_trim(0) >= 0, "malloc_trim");
    churn(4, 80 * MIB, 512, 1);
}

static void *churn_thread(void *seed)
{
    churn((uintptr_t)seed, 16 * MIB, 128, 2);
    return NULL;
}

static void thread_arenas(void)
{
    pthread_t threads[8];
    for (uintptr_t i = 0; i < 8; i++)
        CHECK(pthread_create(&threads[i], NULL, churn_thread, (void *)(i + 10)) == 0, "a thread");
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
}

static void calloc_zeroes(void)
{
    for (int round = 0; round < 3; round++) {
        char *big = calloc(96, MIB);
        CHECK(big, "calloc");
        VERIFY_ZERO(big, 96 * MIB, "a large block");
        fill(big, 96 * MIB, 5);
        free(big);
    }
    /* Small ones come from recycled, swapped memory. */
    enum { COUNT = 24 * 1024 };
    static char *blocks[COUNT];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            blocks[i] = calloc(1, 4000);
            CHECK(blocks[i], "calloc");
            VERIFY_ZERO(blocks[i], 4000, "a small block");
            memset(blocks[i], 0xa5, 4000);
        }
        for (int i = 0; i < COUNT; i++)
            free(blocks[i]);
    }
}

static void realloc_growth(void)
{
    size_t size = MIB;
    char *p = malloc(size);
    CHECK(p, "malloc");
    fill(p, size, 6);
    while (size < 128 * MIB) {
        size_t larger = size + size / 2 / PAGE * PAGE;
        p = realloc(p, larger);
        CHECK(p, "realloc");
        fill_part(p, size, larger - size, 6);
        size = larger;
    }
    VERIFY(p, size, 6, "grown by realloc");
    p = realloc(p, 16 * MIB);
    CHECK(p, "realloc to less");
    press(PRESSURE);
    VERIFY(p, 16 * MIB, 6, "shrunk by realloc");
    free(p);
}

static void aligned(void)
{
    enum { COUNT = 12 };
    void *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) {
        size_t alignment = 64UL << i;
        CHECK(posix_memalign(&blocks[i], alignment, 10 * MIB) == 0, "posix_memalign");
        CHECK((uintptr_t)blocks[i] % alignment == 0, "alignment %zu", alignment);
        fill(blocks[i], 10 * MIB, 100 + i);
    }
    void *other[] = {aligned_alloc(8192, 8 * MIB), memalign(65536, 8 * MIB), valloc(8 * MIB), pvalloc(8 * MIB)};
    for (int i = 0; i < 4; i++) {
        CHECK(other[i], "allocation %d", i);
        fill(other[i], 8 * MIB, 200 + i);
    }
    for (int i = 0; i < COUNT; i++) {
        VERIFY(blocks[i], 10 * MIB, 100 + i, "an aligned block");
        free(blocks[i]);
    }
    for (int i = 0; i < 4; i++) {
        VERIFY(other[i], 8 * MIB, 200 + i, "another aligned block");
        free(other[i]);
    }
}

/* Freed memory that malloc returns to the kernel, then takes again. */
static void trim(void)
{
    enum { COUNT = 40 * 1024 };
    static char *blocks[COUNT];
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < COUNT; i++) {
            blocks[i] = malloc(3072);
            CHECK(blocks[i], "malloc");
            fill(blocks[i], 3072, round * COUNT + i);
        }
        for (int i = 0; i < COUNT; i++) {
            VERIFY(blocks[i], 3072, round * COUNT + i, "a block");
            if (i % 16)
                free(blocks[i]);
        }
        malloc_trim(0);
        for (int i = 0; i < COUNT; i += 16) {
            VERIFY(blocks[i], 3072, round * COUNT + i, "a block left after malloc_trim");
            free(blocks[i]);
        }
    }
}

/* The heap shrinks from the top and grows again by small blocks alone, faster than any look at the maps: its
 * resident part must then be within the limit. */
static void shrinks_and_grows(void)
{
    enum { SIZE = 1000, COUNT = 120 * 1024 };
    static char *blocks[COUNT];
    mallopt(M_TRIM_THRESHOLD, 128 << 10);
    char *start = sbrk(0);
    size_t most = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            blocks[i] = malloc(SIZE);
            CHECK(blocks[i], "malloc");
            fill(blocks[i], SIZE, round * COUNT + i);
        }
        size_t size = (char *)sbrk(0) - start;
        CHECK(size > (size_t)SIZE * COUNT / 2, "the heap does not hold the blocks");
        uintptr_t first = ((uintptr_t)start + PAGE - 1) / PAGE * PAGE;
        size_t present = present_pages((void *)first, size / PAGE * PAGE);
        most = present > most ? present : most;
        for (int i = 0; i < COUNT; i++) {
            VERIFY(blocks[i], SIZE, round * COUNT + i, "a block");
            free(blocks[i]);
        }
        CHECK((size_t)((char *)sbrk(0) - start) < size / 2, "the heap did not shrink");
    }
    note("present", most);
}

static volatile int may_end;

static int waits(void *nothing)
{
    (void)nothing;
    while (!may_end)
        usleep(1000);
    return 0;
}

/* The kernel clears a word of a thread that ends, and wakes waiters, but does not wait for the word's page. */
static void word_of_a_thread(void)
{
    static char stack[64 << 10] __attribute__((aligned(64)));
    size_t size = 32 * MIB;
    char *p = swapped_memory(size, 9, PRESSURE);
    for (int round = 0; round < 3; round++) {
        int *word = (int *)(p + (round + 1) * 5 * MIB / PAGE * PAGE);
        *word = 1;
        may_end = 0;
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
        CHECK(clone(waits, stack + sizeof stack, flags | CLONE_CHILD_CLEARTID, NULL, NULL, NULL, word) > 0, "clone");
        press(PRESSURE);
        note_absent("absent", word, PAGE);
        may_end = 1;
        usleep(200000);
        CHECK(*word == 0, "the thread has ended, and its word is not cleared");
        fill_part(p, (round + 1) * 5 * MIB, 8, 9);
    }
    VERIFY(p, size, 9, "the rest");
}

static const struct part parts[] = {
    {"word_of_a_thread", word_of_a_thread},
    {"shrinks_and_grows", shrinks_and_grows},
    {"brk_grow_and_shrink", brk_grow_and_shrink},
    {"malloc_small", malloc_small},
    {"thread_arenas", thread_arenas},
    {"calloc_zeroes", calloc_zeroes},
    {"realloc_growth", realloc_growth},
    {"aligned", aligned},
    {"trim", trim},
};

int main(int argc, char **argv)
{
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
