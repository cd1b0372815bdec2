/* The parts of regions.c that fork. */
#include "regions.h"

#include <spawn.h>

static void forks(void)
{
    char *p = swapped(11);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        VERIFY(p, SIZE, 11, "the child's region");
        fill(p, SIZE, 12);
        char *q = region(SIZE);
        VERIFY_ZERO(q, SIZE, "a region of the child");
        fill(q, SIZE, 13);
        pid_t grandchild = fork();
        CHECK(grandchild >= 0, "fork");
        if (grandchild == 0) {
            VERIFY(p, SIZE, 12, "the grandchild's region");
            VERIFY(q, SIZE, 13, "the grandchild's second region");
            unmap(q);
            fill(p, SIZE, 14);
            VERIFY(p, SIZE, 14, "the grandchild's region, changed");
            _exit(0);
        }
        VERIFY(p, SIZE, 12, "the child's region, changed");
        VERIFY(q, SIZE, 13, "the child's second region");
        CHECK(reap(grandchild) == 0, "the grandchild failed");
        _exit(0);
    }
    fill(p, SIZE / 2, 15);
    VERIFY_PART(p, SIZE / 2, SIZE / 2, 11, "the parent's region");
    VERIFY(p, SIZE / 2, 15, "the parent's region, changed");
    CHECK(reap(child) == 0, "the child failed");
    VERIFY(p, SIZE / 2, 15, "the parent's region, after the child");
    uint64_t resident = figure("\"is\":\"run\"", "resident_bytes");
    CHECK(resident <= LIMIT, "%zu bytes resident", (size_t)resident);
}

/* A child whose memory is small when it forks. */
static void bare_forks(void)
{
    open_engine();
    char *p = region(2 * MIB);
    fill(p, 2 * MIB, 16);
    for (int turn = 0; turn < 3; turn++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child == 0) {
            VERIFY(p, 2 * MIB, 16, "the child's region");
            char *q = region(SIZE);
            fill(q, SIZE, 17);
            VERIFY(q, SIZE, 17, "a region of the child");
            CHECK(present_pages(q, SIZE) * PAGE <= LIMIT, "%zu", present_pages(q, SIZE));
            VERIFY(p, 2 * MIB, 16, "the child's region, later");
            _exit(0);
        }
        CHECK(reap(child) == 0, "the child failed");
    }
    VERIFY(p, 2 * MIB, 16, "the parent's region");
}

static volatile int stop;

static void *keep_writing(void *argument)
{
    char *p = argument;
    for (uint64_t turn = 0; !stop; turn++) {
        fill(p, SIZE / 4, 1000 + turn);
        VERIFY(p, SIZE / 4, 1000 + turn, "what a thread writes during forks");
    }
    return NULL;
}

extern char **environ;

/* Forks of all kinds while another thread swaps. */
static void many_forks(void)
{
    char *p = swapped(18);
    pthread_t thread;
    char *q = region(SIZE / 4);
    CHECK(pthread_create(&thread, NULL, keep_writing, q) == 0, "thread");
    for (int turn = 0; turn < 20; turn++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child == 0) {
            size_t page = mix(turn) % (SIZE / PAGE) * PAGE;
            VERIFY_PART(p, page, PAGE, 18, "the child's page");
            _exit(0);
        }
        CHECK(reap(child) == 0, "the child failed");
        child = vfork();
        if (child == 0)
            _exit(wrong_words(p, 0, PAGE, 18) == 0 ? 3 : 4);
        CHECK(reap(child) == 3, "the vfork child failed");
        char *line[] = {"true", NULL};
        CHECK(posix_spawnp(&child, "true", NULL, NULL, line, environ) == 0, "posix_spawn");
        CHECK(reap(child) == 0, "the spawned child failed");
        CHECK(system("exit 5") == 5 << 8, "system");
    }
    stop = 1;
    pthread_join(thread, NULL);
    VERIFY(p, SIZE, 18, "the parent's region");
}

static void *open_now(void *argument)
{
    open_engine();
    return argument;
}

/* Whoever has an engine shares its regions with its children, which have engines too. */
static void use_engine(uint64_t seed)
{
    open_engine();
    char *p = region(MIB);
    fill(p, MIB, seed);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        VERIFY(p, MIB, seed, "the region in a child");
        unmap(region(MIB));
        _exit(0);
    }
    CHECK(reap(child) == 0, "the child failed");
}

#define CHILDREN 12

/* Forks while another thread opens the engine: a child opens one, or has its parent's. */
static void forks_while_opening(void)
{
    for (int turn = 0; turn < 10; turn++) {
        pid_t program = fork();
        CHECK(program >= 0, "fork");
        if (program == 0) {
            pthread_t thread;
            pid_t children[CHILDREN];
            CHECK(pthread_create(&thread, NULL, open_now, NULL) == 0, "thread");
            for (int i = 0; i < CHILDREN; i++) {
                children[i] = fork();
                CHECK(children[i] >= 0, "fork");
                if (children[i] == 0) {
                    use_engine(30 + i);
                    _exit(0);
                }
            }
            for (int i = 0; i < CHILDREN; i++)
                CHECK(reap(children[i]) == 0, "child %d failed", i);
            pthread_join(thread, NULL);
            use_engine(30 + CHILDREN);
            _exit(0);
        }
        CHECK(reap(program) == 0, "the program of turn %d failed", turn);
    }
}

#define FEW 8
#define LITTLE (MIB / 4)

/* The last region that a thread has filled; the next ones leave it alone. */
static char *_Atomic newest;

static void *map_and_unmap(void *argument)
{
    char *all[FEW] = {argument};
    for (int turn = 0; !stop; turn++) {
        char **p = &all[turn % FEW];
        if (*p)
            unmap(*p);
        *p = region(LITTLE);
        fill(*p, LITTLE, 50);
        newest = *p;
    }
    return NULL;
}

/* Regions between which those of the thread come and go. */
static char *between[FEW];

static void fork_meanwhile(const char *whole)
{
    for (int turn = 0; turn < 40; turn++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child == 0) {
            char *p = newest;
            if (p)
                VERIFY(p, LITTLE, 50, "the newest region in the child");
            for (int i = 0; i < FEW; i++)
                VERIFY(between[i], LITTLE, 52, "a region that stays, in the child");
            if (whole)
                VERIFY_PART(whole, mix(turn) % (SIZE / PAGE) * PAGE, PAGE, 51, "the child's page");
            char *q = region(LITTLE);
            VERIFY_ZERO(q, LITTLE, "a region of the child");
            if (p)
                unmap(p);
            unmap(q);
            _exit(0);
        }
        CHECK(reap(child) == 0, "the child failed");
    }
}

/* Forks while another thread maps and unmaps regions, before anything is swapped and after that. */
static void regions_during_forks(void)
{
    open_engine();
    char *holes[FEW];
    for (int i = 0; i < FEW; i++) {
        between[i] = region(LITTLE);
        holes[i] = region(LITTLE);
        fill(between[i], LITTLE, 52);
    }
    for (int i = 0; i < FEW; i++)
        unmap(holes[i]);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, map_and_unmap, NULL) == 0, "thread");
    fork_meanwhile(NULL);
    char *p = swapped(51);
    fork_meanwhile(p);
    stop = 1;
    pthread_join(thread, NULL);
    VERIFY(p, SIZE, 51, "the parent's region");
}

/* A fork past the C library: no handler runs. */
static void raw_fork(void)
{
    char *p = swapped(19);
    for (int turn = 0; turn < 3; turn++) {
        pid_t child = syscall(SYS_fork);
        CHECK(child >= 0, "fork");
        if (child == 0) {
            VERIFY(p, SIZE, 19, "the child's region");
            _exit(0);
        }
        VERIFY(p, SIZE, 19, "the parent's region");
        CHECK(reap(child) == 0, "the child failed");
    }
}

/* The same for an ordinary user: the child must not read zeros. */
static void raw_fork_unseen(void)
{
    char *p = swapped(27);
    for (int turn = 0; turn < 3; turn++) {
        pid_t child = syscall(SYS_fork);
        CHECK(child >= 0, "fork");
        if (child == 0)
            _exit(((volatile char *)p)[mix(turn) % SIZE] == 0 ? 1 : 2);
        CHECK(reap(child) == 128 + SIGSEGV, "the child went on");
        child = fork();
        CHECK(child >= 0, "fork");
        if (child == 0) {
            VERIFY(p, SIZE, 27, "the child's region");
            _exit(0);
        }
        CHECK(reap(child) == 0, "the child failed");
    }
    VERIFY(p, SIZE, 27, "the parent's region");
}

/* The kernel tells the engine of a program with rights of forks, but not those of its children without. */
static void rights_given_up(void)
{
    char *p = swapped(28);
    CHECK(setgid(65534) == 0 && setuid(65534) == 0, "another user");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        VERIFY(p, SIZE, 28, "the child's region");
        pid_t past = syscall(SYS_fork);
        CHECK(past >= 0, "fork");
        if (past == 0)
            _exit(*(volatile char *)p == 0 ? 1 : 2);
        CHECK(reap(past) == 128 + SIGSEGV, "the child of the child went on");
        VERIFY(p, SIZE, 28, "the child's region, later");
        _exit(0);
    }
    CHECK(reap(child) == 0, "the child failed");
    VERIFY(p, SIZE, 28, "the parent's region");
}
