/* A program with a full swap area, or with an area that returns other bytes than were written. */
#include "check.h"

#include <setjmp.h>

/* 80 MiB: more than the limit, less than limit and area together. */
static void fits_both(void)
{
    char *p = map(80 * MIB);
    for (int round = 0; round < 4; round++) {
        fill(p, 80 * MIB, round);
        VERIFY(p, 80 * MIB, round, "round");
    }
}

/* 160 MiB: more than both; the pages already written stay right in the handler. */
static char *region;
static volatile size_t written;
static void on_bus_error(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    size_t at = (char *)info->si_addr - region;
    printf("bus error %s\n", at < 160 * MIB ? "in the region" : "elsewhere");
    fflush(stdout);
    _exit(at < 160 * MIB && written > 32 * MIB ? 55 : 56);
}

static void fits_neither(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
    region = map(160 * MIB);
    for (size_t at = 0; at < 160 * MIB; at += PAGE) {
        fill_part(region, at, PAGE, 1);
        written = at;
    }
    printf("no bus error\n");
}

static void fits_neither_unhandled(void)
{
    region = map(160 * MIB);
    fill(region, 160 * MIB, 1);
    printf("no bus error\n");
}

/* A thread waits for room until another one gives memory back. */
static char *ballast;
static void *gives_back(void *unused)
{
    (void)unused;
    usleep(1500000);
    CHECK(munmap(ballast, 72 * MIB) == 0, "munmap");
    return NULL;
}

static void waits_for_room(void)
{
    ballast = map(72 * MIB);
    fill(ballast, 72 * MIB, 2);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, gives_back, NULL) == 0, "a thread");
    char *p = map(72 * MIB);
    fill(p, 72 * MIB, 3);
    pthread_join(thread, NULL);
    VERIFY(p, 72 * MIB, 3, "in the end");
}

/* Memory that is evicted, discarded and evicted again, many times the area's size in total: slots must be freed. */
static void turns_over(void)
{
    for (int round = 0; round < 12; round++) {
        char *p = map(80 * MIB);
        fill(p, 80 * MIB, round);
        if (round % 3 == 0) {
            CHECK(madvise(p, 40 * MIB, MADV_DONTNEED) == 0, "MADV_DONTNEED");
            fill_part(p, 0, 40 * MIB, round);
        }
        VERIFY(p, 80 * MIB, round, "round");
        CHECK(munmap(p, 80 * MIB) == 0, "munmap");
    }
}

/* Swaps, says "ready", waits for the file "go-on", and reads everything: a page is either right or a bus error,
 * never wrong. */
static sigjmp_buf escape;
static void to_next_page(int signal) { (void)signal; siglongjmp(escape, 1); }

static void reads_after_damage(void)
{
    const size_t size = 160 * MIB;
    volatile size_t right = 0, lost = 0, wrong = 0;
    char *p = map(size);
    fill(p, size, 4);
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < 600 && access("go-on", F_OK) != 0; i++)
        usleep(50000);
    signal(SIGBUS, to_next_page);
    for (volatile size_t at = 0; at < size; at += PAGE) {
        if (sigsetjmp(escape, 1)) {
            lost++;
            continue;
        }
        if (wrong_words(p, at, PAGE, 4) == 0)
            right++;
        else
            wrong++;
    }
    note("right", right);
    note("lost", lost);
    printf("%zu wrong, %s lost, most right: %d\n", wrong, lost ? "some" : "none", right > size / PAGE / 2);
    /* A lost page is lost until it is discarded; then it is ordinary memory. */
    signal(SIGBUS, SIG_DFL);
    CHECK(madvise(p, 16 * MIB, MADV_DONTNEED) == 0, "MADV_DONTNEED");
    VERIFY_ZERO(p, 16 * MIB, "given back");
    fill(p, 16 * MIB, 5);
    press(96);
    VERIFY(p, 16 * MIB, 5, "written again");
}

/* Leaves a pattern in every page that could be found on the disk afterwards. */
static void writes_a_secret(void)
{
    size_t size = 160 * MIB;
    char *p = map(size);
    fill(p, size, 6);
    for (size_t at = 0; at < size; at += PAGE)
        memcpy(p + at + 128, "the secret of foreswap's test", 29);
    for (size_t at = 0; at < size; at += PAGE)
        CHECK(memcmp(p + at + 128, "the secret of foreswap's test", 29) == 0, "page at %zu", at);
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < 600 && access("go-on", F_OK) != 0; i++)
        usleep(50000);
}

static const struct part parts[] = {
    {"fits_both", fits_both},
    {"fits_neither", fits_neither},
    {"fits_neither_unhandled", fits_neither_unhandled},
    {"waits_for_room", waits_for_room},
    {"turns_over", turns_over},
    {"reads_after_damage", reads_after_damage},
    {"writes_a_secret", writes_a_secret},
};

int main(int argc, char **argv)
{
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
