/* Memory of same-filled pages: filled, read twice, moved, discarded in part, changed here and there, and read by a
 * child that changes its own copy. */
#include "check.h"

#define SIZE (192 * MIB)
#define WORDS (PAGE / sizeof(uint64_t))
#define PAGES (SIZE / PAGE)
#define CHANGED 1000 /* pages from one that is changed to the next */

/* Long stretches of one word, and short ones of others: bytes, and numbers of all kinds. */
static uint64_t word_of(size_t page)
{
    static const uint64_t words[] = {0x3fb999999999999a, ~0ull, 0x0101010101010101, 7, 0x3f8000003f800000};
    if (page % 4096 < 3000)
        return words[page / 4096 % 5];
    return page % 3 ? 0x8000000000000000ull | page / 64 : 0;
}

static void look(const uint64_t *at, size_t first, size_t end, const char *what)
{
    for (size_t page = first; page < end; page++) {
        const uint64_t *words = at + (page - first) * WORDS;
        uint64_t wanted = word_of(page), differ = 0;
        for (size_t n = 0; n < WORDS; n++)
            differ |= words[n] ^ (page % CHANGED == 1 && n == 77 ? page : wanted);
        CHECK(differ == 0, what);
    }
}

int main(void)
{
    uint64_t *at = (uint64_t *)map(SIZE);
    for (size_t page = 0; page < PAGES; page++)
        for (size_t n = 0; n < WORDS; n++)
            at[page * WORDS + n] = word_of(page);
    for (size_t page = 1; page < PAGES; page += CHANGED)
        at[page * WORDS + 77] = page;
    look(at, 0, PAGES, "the first time");
    look(at, 0, PAGES, "the second time");

    size_t half = PAGES / 2;
    uint64_t *moved = mremap(at + half * WORDS, SIZE / 2, SIZE / 2, MREMAP_MAYMOVE | MREMAP_FIXED, map(SIZE / 2));
    CHECK(moved != MAP_FAILED, "mremap");
    look(moved, half, PAGES, "after a move");

    size_t gone = half + 3 * 4096 + 100, pages = 700;
    CHECK(madvise(moved + (gone - half) * WORDS, pages * PAGE, MADV_DONTNEED) == 0, "madvise");
    for (size_t n = 0; n < pages * WORDS; n++)
        CHECK(moved[(gone - half) * WORDS + n] == 0, "after a discard");

    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        look(at, 0, half, "in the child");
        look(moved, half, gone, "in the child, moved");
        memset(at, 0x55, 20 * MIB);
        look(at + 20 * MIB / PAGE * WORDS, 20 * MIB / PAGE, half, "in the child that writes");
        _exit(0);
    }
    at[5] = 1;
    CHECK(at[5] == 1, "a word that is written");
    at[5] = word_of(0);
    look(at, 0, half, "in the parent");
    look(moved + (gone + pages - half) * WORDS, gone + pages, PAGES, "in the parent, moved");
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child");
    puts("all as it should be");
    return 0;
}
