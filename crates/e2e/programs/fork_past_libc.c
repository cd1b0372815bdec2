/* Forks by inline assembly, of which nobody is told, with most of the memory swapped out. The children use plain memory
 * and system calls of their own, as the C library may be in any state there. */
#include "forks.h"

#include <sys/prctl.h>

static long raw(long number, long a, long b, long c, long d, long e)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    __asm__ volatile("syscall"
                     : "+a"(number)
                     : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return number;
}

static pid_t by_fork(void) { return raw(SYS_fork, 0, 0, 0, 0, 0); }
static pid_t by_clone(void) { return raw(SYS_clone, SIGCHLD, 0, 0, 0, 0); }
static pid_t by_clone3(void)
{
    uint64_t arguments[11] = {0};
    arguments[4] = SIGCHLD;
    return raw(SYS_clone3, (long)arguments, sizeof arguments, 0, 0, 0);
}

static pid_t (*const ways[])(void) = {by_fork, by_clone, by_clone3};
static const char *const names[] = {"fork", "clone", "clone3"};

static void ends(int status) { raw(SYS_exit_group, status, 0, 0, 0, 0); }

/* What a child does: reads all, writes a part, and changes its address space. Returns 0, or what was wrong. */
static int works_alone(char *p, uint64_t seed, uint64_t mine)
{
    if (wrong_words(p, 0, REGION, seed))
        return 91;
    fill_part(p, 0, REGION / 4, mine);
    char *quarter = p + REGION / 4;
    if (raw(SYS_madvise, (long)quarter, REGION / 4, MADV_DONTNEED, 0, 0))
        return 92;
    for (size_t i = 0; i < REGION / 4; i += PAGE)
        if (quarter[i])
            return 93;
    return wrong_words(p, 0, REGION / 4, mine) || wrong_words(p, REGION / 2, REGION / 2, seed) ? 94 : 0;
}

static void reads_and_writes(void)
{
    char *p = swapped_region(1);
    for (int i = 0; i < 3; i++) {
        fflush(stdout);
        pid_t pid = ways[i]();
        CHECK(pid >= 0, "%s", names[i]);
        if (pid == 0)
            ends(works_alone(p, 1 + i, 100 + i));
        fill(p, REGION, 2 + i);
        press(PRESSURE);
        child_was_right(pid, names[i]);
        VERIFY(p, REGION, 2 + i, names[i]);
    }
}

/* Memory that moves before it is touched: within the child, and in it. */
static void moves(void)
{
    char *p = swapped_region(10), *to = map(REGION);
    pid_t pid = by_fork();
    if (pid == 0) {
        long moved = raw(SYS_mremap, (long)p, REGION, REGION, MREMAP_MAYMOVE | MREMAP_FIXED, (long)to);
        if (moved != (long)to || wrong_words(to, 0, REGION, 10))
            ends(91);
        /* The old place is new memory. */
        long again = raw(SYS_mremap, (long)to, REGION / 2, REGION / 2, MREMAP_MAYMOVE | MREMAP_FIXED, (long)p);
        if (again != (long)p || wrong_words(p, 0, REGION / 2, 10) || wrong_words(to, REGION / 2, REGION / 2, 10))
            ends(92);
        if (raw(SYS_munmap, (long)p, REGION / 2, 0, 0, 0))
            ends(93);
        ends(0);
    }
    child_was_right(pid, "a child that moves memory");
    press(PRESSURE);
    VERIFY(p, REGION, 10, "the parent");
}

/* Children of children, the last one by the C library. */
static void generations(char *p, int left)
{
    fill_part(p, left * MIB, MIB, 200 + left);
    fflush(stdout);
    pid_t pid = left > 1 ? ways[left % 3]() : fork();
    if (pid == 0) {
        if (wrong_words(p, left * MIB, MIB, 200 + left) || wrong_words(p, 8 * MIB, REGION - 8 * MIB, 20))
            ends(91);
        if (left > 1)
            generations(p, left - 1);
        ends(0);
    }
    int status = -1;
    raw(SYS_wait4, pid, (long)&status, 0, 0, 0);
    if (status != 0 || wrong_words(p, 8 * MIB, REGION - 8 * MIB, 20))
        ends(status ? 95 : 96);
}

static void children_of_children(void)
{
    char *p = swapped_region(20);
    pid_t pid = forked();
    if (pid == 0) {
        generations(p, 4);
        ends(0);
    }
    child_was_right(pid, "the generations");
    VERIFY(p, REGION, 20, "the parent");
}

/* The parent ends, or executes a file, while the child needs its pages: with an engine, and before it has one. */
static void parent_leaves(void)
{
    char *p = swapped_region(30);
    for (int way = 0; way < 4; way++) {
        int done[2];
        CHECK(pipe(done) == 0, "pipe");
        pid_t parent = forked();
        if (parent == 0) {
            if (way & 1) {
                VERIFY(p, REGION, 30, "a child by the C library");
                press(PRESSURE);
            }
            if (by_clone() == 0) {
                raw(SYS_close, done[0], 0, 0, 0, 0);
                usleep(20000);
                raw(SYS_write, done[1], (long)(works_alone(p, 30, 31) ? "w" : "r"), 1, 0, 0);
                ends(0);
            }
            if (way & 2)
                execl("/bin/true", "true", NULL);
            _exit(0);
        }
        child_was_right(parent, "the one between");
        close(done[1]);
        char verdict = 0;
        ssize_t got = read(done[0], &verdict, 1);
        /* Where its parent had no engine and has ended at once, the content may be lost, which ends the orphan. */
        CHECK(got == 1 ? verdict == 'r' : got == 0 && !(way & 1), "the orphan of way %d: %c", way, verdict);
        close(done[0]);
    }
    VERIFY(p, REGION, 30, "the first process");
}

/* Slots that such children held must be free: run with little swap. */
static void many(void)
{
    char *p = swapped_region(40);
    for (int i = 0; i < 30; i++) {
        pid_t pid = ways[i % 3]();
        if (pid == 0) {
            if (i % 3 == 0)
                raw(SYS_execve, (long)"/bin/true", (long)(char *[]){"true", NULL}, (long)(char *[]){NULL}, 0, 0);
            ends(wrong_words(p, REGION - 4 * MIB, 4 * MIB, 40 + i) ? 91 : 0);
        }
        child_was_right(pid, "a child");
        fill(p, REGION, 41 + i);
    }
    VERIFY(p, REGION, 70, "in the end");
}

static volatile int stop;

static char *region_of_thread;
static char *volatile whole;

/* Moves a region to and fro; the pointer is set while it is whole. */
static void *mover(void *unused)
{
    (void)unused;
    char *at = region_of_thread, *free_place = map(REGION);
    while (!stop) {
        whole = NULL;
        CHECK(mremap(at, REGION, REGION, MREMAP_MAYMOVE | MREMAP_FIXED, free_place) == free_place, "mremap");
        char *old = at;
        at = free_place;
        whole = at;
        free_place = mmap(old, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(free_place == old, "mapping the old place");
        usleep(mix((uintptr_t)at) % 1000);
    }
    region_of_thread = at;
    return NULL;
}

/* Other threads change the address space. The kernel's report of a move may be read after that of the fork. */
static void beside_moves(void)
{
    region_of_thread = swapped_region(50);
    char *p = swapped_region(51);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, mover, NULL) == 0, "thread");
    size_t looked = 0;
    for (int i = 0; i < 60; i++) {
        usleep(mix(i) % 2000);
        while (!whole)
            usleep(50);
        pid_t pid = ways[i % 3]();
        if (pid == 0) {
            char *at = whole;
            if (at && wrong_words(at, i % 40 * MIB, MIB, 50))
                ends(91);
            if (wrong_words(p, i % 40 * MIB, MIB, 51))
                ends(92);
            ends(at ? 0 : 80);
        }
        int code = reap(pid);
        CHECK(code == 0 || code == 80, "a child ended with %d", code);
        looked += code == 0;
    }
    stop = 1;
    pthread_join(thread, NULL);
    note("looked", looked);
    VERIFY(region_of_thread, REGION, 50, "what moved");
    VERIFY(p, REGION, 51, "what did not");
}

/* The child looks at its memory once its parent has ended. It prints "wrong" if a word is not what it was. */
static void engine_is_killed(void)
{
    char *p = swapped_region(20);
    fflush(stdout);
    pid_t parent = getpid(), pid = by_fork();
    if (pid == 0) {
        raw(SYS_write, 1, (long)"forked\n", 7, 0, 0);
        struct timespec soon = {.tv_nsec = 1000000};
        while (raw(SYS_getppid, 0, 0, 0, 0, 0) == parent)
            raw(SYS_nanosleep, (long)&soon, 0, 0, 0, 0);
        if (wrong_words(p, 0, REGION, 20))
            raw(SYS_write, 1, (long)"wrong\n", 6, 0, 0);
        else
            raw(SYS_write, 1, (long)"right\n", 6, 0, 0);
        ends(0);
    }
    reap(pid);
}

/* Two children that only live for a while, one of them of a fork that the C library makes. Without CAP_SYS_PTRACE nobody
 * is told of the other. */
static void nobody_is_told(void)
{
    swapped_region(30);
    pid_t known = forked();
    struct timespec time = {.tv_sec = 3};
    if (known == 0) {
        nanosleep(&time, NULL);
        _exit(0);
    }
    pid_t pid = by_fork();
    if (pid == 0) {
        raw(SYS_nanosleep, (long)&time, 0, 0, 0, 0);
        ends(0);
    }
    note("known", known);
    note("unknown", pid);
    child_was_right(known, "a child");
    child_was_right(pid, "a child past the C library");
}

static char *both_regions;
static size_t both_wrong;

/* Forks past the C library, one after the other. */
static void *forks_past_libc(void *unused)
{
    (void)unused;
    for (int i = 0; !stop; i++) {
        pid_t pid = ways[i % 3]();
        if (pid == 0)
            ends(wrong_words(both_regions, i % 40 * MIB, MIB, 0) ? 91 : 0);
        int status = -1;
        raw(SYS_wait4, pid, (long)&status, 0, 0, 0);
        both_wrong += status != 0;
    }
    return NULL;
}

/* Forks by the C library and past it at the same moments. */
static void at_the_same_moment(void)
{
    both_regions = swapped_region(0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, forks_past_libc, NULL) == 0, "thread");
    for (int i = 0; i < 80; i++) {
        pid_t pid = forked();
        if (pid == 0) {
            VERIFY_PART(both_regions, i % 40 * MIB, MIB, 0, "a child");
            _exit(0);
        }
        child_was_right(pid, "a child by the C library");
        if (i % 20 == 19)
            press(PRESSURE);
    }
    stop = 1;
    pthread_join(thread, NULL);
    CHECK(both_wrong == 0, "%zu children past the C library were wrong", both_wrong);
    VERIFY(both_regions, REGION, 0, "the parent");
}

#define PART (16 * MIB)
#define NEED 80

/* A child past the C library, of which nobody is told: each word is what it was, or not there. */
static void no_wrong_word(char *p, size_t bytes, uint64_t seed, const char *what)
{
    static int turn;
    fflush(stdout);
    pid_t pid = ways[turn++ % 3]();
    CHECK(pid >= 0, "a fork");
    if (pid == 0)
        ends(wrong_words(p, 0, bytes, seed) ? 91 : 0);
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
    CHECK(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV), "%s: status %#x", what, status);
}

/* A child by the C library, which has all, and whose own children past the C library have no wrong word either. */
static void child_has_it(char *p, size_t bytes, uint64_t seed, const char *what)
{
    pid_t pid = forked();
    if (pid == 0) {
        no_wrong_word(p, bytes, seed, "a child of a child");
        VERIFY(p, bytes, seed, what);
        press(NEED);
        no_wrong_word(p, bytes, seed, "a child of a child under pressure");
        VERIFY(p, bytes, seed, what);
        _exit(0);
    }
    child_was_right(pid, what);
}

static void child_has_not(char *p, size_t bytes, const char *what)
{
    pid_t pid = forked();
    if (pid == 0)
        _exit(msync(p, bytes, MS_ASYNC) != 0 && errno == ENOMEM ? 0 : 91);
    child_was_right(pid, what);
}

/* Without CAP_SYS_PTRACE. */
static void no_child_reads_zeros(void)
{
    char *p = swapped_memory(PART, 60, NEED);
    no_wrong_word(p, PART, 60, "swapped memory");
    child_has_it(p, PART, 60, "a child");
    no_wrong_word(p, PART, 60, "after a fork");

    char *q = mremap(p, PART, 2 * PART, MREMAP_MAYMOVE);
    CHECK(q != MAP_FAILED, "mremap");
    no_wrong_word(q, PART, 60, "memory that moved");
    child_has_it(q, PART, 60, "a child with memory that moved");
    if (q != p) {
        p = mmap(p, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        fill(p, PART, 61);
        press(NEED);
        no_wrong_word(p, PART, 61, "memory at an old place");
        child_has_it(p, PART, 61, "a child with memory at an old place");
        CHECK(munmap(p, PART) == 0, "munmap");
    }

    for (size_t at = 0; at < PART; at += 8 * MIB)
        CHECK(mprotect(q + at, 4 * MIB, PROT_NONE) == 0, "mprotect");
    press(NEED);
    for (size_t at = 0; at < PART; at += 8 * MIB)
        CHECK(mprotect(q + at, 4 * MIB, PROT_READ | PROT_WRITE) == 0, "mprotect");
    no_wrong_word(q, PART, 60, "memory that was protected");
    child_has_it(q, PART, 60, "a child with memory that was protected");

    char *left = mremap(q, PART, PART, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
    if (left != MAP_FAILED) {
        no_wrong_word(left, PART, 60, "memory that left a place");
        pid_t pid = forked();
        if (pid == 0) {
            for (size_t at = 0; at < PART; at += PAGE)
                if (q[at])
                    _exit(91);
            VERIFY(left, PART, 60, "memory that left a place");
            _exit(0);
        }
        child_was_right(pid, "a child with a place that memory left");
    }
}

/* Memory that the program keeps from its children itself: before it is managed, and once it is swapped out. */
static void own_advice(void)
{
    char *early = map(PART), *late = swapped_memory(PART, 71, NEED);
    CHECK(madvise(early, PART, MADV_DONTFORK) == 0, "advice");
    fill(early, PART, 70);
    press(NEED);
    child_has_not(early, PART, "a child without memory");
    child_has_it(late, PART, 71, "a child");

    char *half = late + PART / 2;
    fill(half, PART / 2, 72);
    press(NEED);
    CHECK(madvise(half, PART / 2, MADV_DONTFORK) == 0, "advice");
    child_has_not(half, PART / 2, "a child without half of it");
    child_has_it(late, PART / 2, 71, "a child with the other half");

    CHECK(madvise(early, PART, MADV_DOFORK) == 0 && madvise(half, PART / 2, MADV_DOFORK) == 0, "advice");
    no_wrong_word(early, PART, 70, "memory that children may have");
    no_wrong_word(half, PART / 2, 72, "the half that children may have");
    child_has_it(early, PART, 70, "a child that may have the memory");
    child_has_it(half, PART / 2, 72, "a child that may have the half");
}

static const struct part parts[] = {
    {"reads_and_writes", reads_and_writes}, {"moves", moves},
    {"children_of_children", children_of_children}, {"parent_leaves", parent_leaves},
    {"many", many}, {"beside_moves", beside_moves}, {"engine_is_killed", engine_is_killed},
    {"nobody_is_told", nobody_is_told}, {"no_child_reads_zeros", no_child_reads_zeros},
    {"own_advice", own_advice}, {"at_the_same_moment", at_the_same_moment},
};

int main(int argc, char **argv)
{
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
