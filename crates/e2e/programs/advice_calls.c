/* madvise and related calls under foreswap: they return the same values as without it, and the advice has an
 * effect. The statistics of the run show the effect. */
#include "check.h"

#include <stdatomic.h>
#include <sys/time.h>

#define ALL (96 * MIB)
#define PART (24 * MIB)
#define READ (4 * MIB)

/* Maps more than the limit, so that memory is managed, and fills a part of it that fits. */
static char *managed_memory(void)
{
    char *p = map(ALL);
    fill(p, PART, 1);
    return p;
}

/* Waits until no page of the region is in memory; without foreswap it does not wait. */
static void await_out(const char *p, size_t size)
{
    for (int i = 0; i < 500 && getenv("FORESWAP_SOCKET") && present_pages(p, size) > 0; i++)
        usleep(20000);
    note_absent("absent", p, size);
}

static void page_out(char *p, size_t size)
{
    CHECK(madvise(p, size, MADV_PAGEOUT) == 0, "MADV_PAGEOUT");
    await_out(p, size);
}

static void say(const char *what, long result)
{
    printf("%s: %ld, errno %d\n", what, result, errno);
    errno = 77;
}

static void results(void)
{
    char *p = managed_memory();
    CHECK(munmap(p + 8 * PAGE, PAGE) == 0, "a hole");
    char *locked = map(64 * PAGE);
    CHECK(mlock(locked, 4 * PAGE) == 0, "mlock");
    int all[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_COLD, MADV_PAGEOUT};
    errno = 77;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int advice = all[i];
        printf("advice %d\n", advice);
        say("good", madvise(p, 4 * PAGE, advice));
        say("odd length", madvise(p, 4 * PAGE + 1, advice));
        say("nothing", madvise(p, 0, advice));
        say("odd start", madvise(p + 1, PAGE, advice));
        say("a hole in it", madvise(p, 16 * PAGE, advice));
        say("only the hole", madvise(p + 8 * PAGE, PAGE, advice));
        say("past the end", madvise(p, -PAGE, advice));
        say("locked", madvise(locked, 8 * PAGE, advice));
        say("syscall", syscall(SYS_madvise, p, 4 * PAGE, advice));
        say("syscall, a hole", syscall(SYS_madvise, p, 16 * PAGE, advice));
        say("posix", posix_madvise(p, 4 * PAGE, advice));
        say("posix, odd start", posix_madvise(p + 1, 4 * PAGE, advice));
        say("posix, a hole", posix_madvise(p, 16 * PAGE, advice));
    }
    say("unknown", madvise(p, PAGE, 4711));
    say("posix, unknown", posix_madvise(p, PAGE, 4711));
    say("posix, not needed", posix_madvise(p, 4 * PAGE, POSIX_MADV_DONTNEED));
    VERIFY_PART(p, 0, 8 * PAGE, 1, "before the hole");
    VERIFY_PART(p, 9 * PAGE, PART - 9 * PAGE, 1, "after the hole");
}

static void pageout(void)
{
    char *p = managed_memory();
    CHECK(madvise(p, PART / 2, MADV_PAGEOUT) == 0, "MADV_PAGEOUT");
    CHECK(syscall(SYS_madvise, p + PART / 2, PART / 2, MADV_PAGEOUT) == 0, "MADV_PAGEOUT");
    await_out(p, PART);
    VERIFY(p, PART, 1, "after it was paged out");
}

static void willneed_or_not(int will)
{
    char *p = managed_memory();
    page_out(p, PART);
    if (will)
        CHECK(madvise(p, READ, MADV_WILLNEED) == 0, "MADV_WILLNEED");
    /* Time to read it. */
    usleep(500000);
    VERIFY(p, READ, 1, "what was needed");
}

static void willneed(void)
{
    willneed_or_not(1);
}

static void no_willneed(void)
{
    willneed_or_not(0);
}

static void cold(void)
{
    /* Later mappings lie lower, where reclaim would begin. */
    char *a = map(PART / 2), *b = map(PART / 2), *more = map(ALL);
    fill(a, PART / 2, 2);
    fill(b, PART / 2, 3);
    CHECK(madvise(a, PART / 2, MADV_COLD) == 0, "MADV_COLD");
    fill(more, 44 * MIB, 4);
    note_absent("absent", a, PART / 2);
    note_absent("warm_absent", b, PART / 2);
    VERIFY(a, PART / 2, 2, "cold memory");
    VERIFY(b, PART / 2, 3, "other memory");
}

static void read_in_order(const char *p)
{
    VERIFY(p, READ, 1, "read in order");
}

static void no_hint(void)
{
    char *p = managed_memory();
    page_out(p, PART);
    read_in_order(p);
}

static void random_hint(void)
{
    char *p = managed_memory();
    page_out(p, PART);
    CHECK(posix_madvise(p, ALL, POSIX_MADV_RANDOM) == 0, "POSIX_MADV_RANDOM");
    read_in_order(p);
}

/* Advice given while all memory fitted and nothing was managed. */
static void random_hint_before(void)
{
    char *p = map(PART);
    fill(p, PART, 1);
    CHECK(madvise(p, PART, MADV_RANDOM) == 0, "MADV_RANDOM");
    map(ALL);
    page_out(p, PART);
    read_in_order(p);
}

static void random_hint_in_a_child(void)
{
    char *p = managed_memory();
    CHECK(madvise(p, ALL, MADV_RANDOM) == 0, "MADV_RANDOM");
    page_out(p, PART);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        read_in_order(p);
        _exit(0);
    }
    CHECK(reap(pid) == 0, "the child");
}

static void sequential_hint(void)
{
    char *p = managed_memory();
    page_out(p, PART);
    CHECK(madvise(p, ALL, MADV_SEQUENTIAL) == 0, "MADV_SEQUENTIAL");
    read_in_order(p);
}

static char *stormy;
static atomic_int calm;

static void advise_somewhere(uint64_t *random)
{
    static const int all[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_COLD, MADV_PAGEOUT};
    *random = mix(*random);
    size_t at = *random / 64 % (ALL / PAGE), pages = 1 + (*random >> 48) % 512;
    if (at + pages > ALL / PAGE)
        pages = ALL / PAGE - at;
    int result = madvise(stormy + at * PAGE, pages * PAGE, all[*random % 6]);
    /* EAGAIN: other threads are splitting the mapping. */
    CHECK(result == 0 || errno == EAGAIN, "advice %d", all[*random % 6]);
}

static void on_alarm(int signal)
{
    static uint64_t random = 5;
    int saved = errno;
    (void)signal;
    advise_somewhere(&random);
    errno = saved;
}

static void *advise_on(void *argument)
{
    uint64_t random = (uintptr_t)argument;
    while (!calm) {
        advise_somewhere(&random);
        usleep(200);
    }
    return NULL;
}

/* Advice from threads, a signal handler and vfork children, while the memory is used. */
static void storm(void)
{
    stormy = map(ALL);
    fill(stormy, ALL, 1);
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, advise_on, (void *)(i + 1)) == 0, "a thread");
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0, "sigaction");
    struct itimerval each = {{0, 2000}, {0, 2000}};
    CHECK(setitimer(ITIMER_REAL, &each, NULL) == 0, "setitimer");
    for (uint64_t round = 1; round < 4; round++) {
        for (size_t at = 0; at < ALL; at += MIB) {
            VERIFY_PART(stormy, at, MIB, round, "in the storm");
            fill_part(stormy, at, MIB, round + 1);
        }
        pid_t pid = vfork();
        if (pid == 0) {
            madvise(stormy, 4 * MIB, MADV_PAGEOUT);
            _exit(0);
        }
        CHECK(reap(pid) == 0, "the vfork child");
        pid = fork();
        if (pid == 0) {
            VERIFY(stormy, 8 * MIB, round + 1, "in a child");
            _exit(0);
        }
        CHECK(reap(pid) == 0, "the child");
    }
    calm = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    VERIFY(stormy, ALL, 4, "after the storm");
}

static const struct part parts[] = {
    {"results", results},
    {"pageout", pageout},
    {"willneed", willneed},
    {"no_willneed", no_willneed},
    {"cold", cold},
    {"no_hint", no_hint},
    {"random_hint", random_hint},
    {"random_hint_before", random_hint_before},
    {"random_hint_in_a_child", random_hint_in_a_child},
    {"sequential_hint", sequential_hint},
    {"storm", storm},
};

int main(int argc, char **argv)
{
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
