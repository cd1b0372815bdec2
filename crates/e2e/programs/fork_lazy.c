/* Actions of a forked child before its engine boots, which it does not before it is needed. Each child changes its
 * memory, or its parent does, before it first touches swapped memory. */
#include "forks.h"

#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

/* Children that execute another file, or exit. */
static void storm(void)
{
    char *p = swapped_region(1);
    for (int i = 0; i < 60; i++) {
        pid_t pid = forked();
        if (pid == 0) {
            if (i % 2)
                execl("/bin/true", "true", NULL);
            _exit(i % 2);
        }
        child_was_right(pid, "a child");
        if (i % 20 == 0)
            press(PRESSURE);
    }
    VERIFY(p, REGION, 1, "after the children");
}

/* The parent discards memory that the child has not touched yet, and ends before the child has. */
static void parent_discards(void)
{
    char *p = swapped_region(2);
    int go[2];
    CHECK(pipe(go) == 0, "pipe");
    pid_t pid = forked();
    if (pid == 0) {
        char byte;
        CHECK(read(go[0], &byte, 1) == 1, "waiting");
        VERIFY(p, REGION, 2, "after the parent gave it back");
        _exit(0);
    }
    CHECK(madvise(p, REGION, MADV_DONTNEED) == 0, "madvise");
    fill_part(p, 0, REGION / 2, 22);
    press(PRESSURE);
    CHECK(write(go[1], "g", 1) == 1, "telling");
    child_was_right(pid, "the child");
    VERIFY_PART(p, 0, REGION / 2, 22, "the parent's own");
}

/* The child changes its mappings before it has touched any of them. */
static void child_changes(void)
{
    enum { PART = 4 * MIB };
    char *p = swapped_region(3);
    for (int round = 0; round < 4; round++) {
        pid_t pid = forked();
        if (pid == 0) {
            /* Discarded: zeros. */
            CHECK(madvise(p, PART, MADV_DONTNEED) == 0, "discard");
            CHECK(madvise(p + PART, PART, MADV_FREE) == 0, "free");
            /* Moved, to an unmapped place and over swapped memory. */
            char *elsewhere = map(PART);
            CHECK(mremap(p + 2 * PART, PART, PART, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) == elsewhere,
                  "a move");
            char *over = p + 3 * PART;
            CHECK(mremap(p + 4 * PART, PART, PART, MREMAP_MAYMOVE | MREMAP_FIXED, over) == over, "a move over");
            /* And back, one part from the middle. */
            char *back = p + 4 * PART;
            CHECK(mremap(elsewhere + MIB, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, back) == back, "a move back");
            /* Unmapped, and mapped anew. */
            CHECK(munmap(p + 5 * PART, PART) == 0, "unmap");
            char *anew = mmap(p + 5 * PART, PART, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            CHECK(anew == p + 5 * PART, "map");
            char *mapped_over = mmap(p + 6 * PART, PART, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            CHECK(mapped_over == p + 6 * PART, "map over");
            if (round % 2)
                fill_part(p, 5 * PART, PART, 33);
            if (round / 2)
                usleep(200000);

            VERIFY_ZERO(p, PART, "discarded");
            VERIFY_ZERO(p + 6 * PART, PART, "mapped over");
            for (size_t i = 0; i < MIB / 8; i++) {
                size_t at = 2 * PART / 8 + i;
                CHECK(((uint64_t *)elsewhere)[i] == word(3, at), "moved, word %zu", i);
                CHECK(((uint64_t *)back)[i] == word(3, at + MIB / 8), "moved twice, word %zu", i);
            }
            for (size_t i = 0; i < PART / 8; i++)
                CHECK(((uint64_t *)over)[i] == word(3, 4 * PART / 8 + i), "moved over, word %zu", i);
            if (round % 2)
                VERIFY_PART(p, 5 * PART, PART, 33, "mapped anew");
            else
                VERIFY_ZERO(p + 5 * PART, PART, "mapped anew");
            VERIFY_PART(p, 7 * PART, REGION - 7 * PART, 3, "left alone");
            _exit(0);
        }
        child_was_right(pid, "the child");
    }
    VERIFY(p, REGION, 3, "the parent's");
}

/* A part of the parent's memory is kept from its children. */
static void kept_from_children(void)
{
    char *p = swapped_region(4);
    CHECK(madvise(p + 8 * MIB, MIB, MADV_DONTFORK) == 0, "madvise");
    for (int i = 0; i < 4; i++) {
        pid_t pid = forked();
        if (pid == 0) {
            char *hole = p + 8 * MIB;
            const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
            if (i % 2)
                CHECK(mmap(hole, MIB / 2, PROT_READ | PROT_WRITE, flags, -1, 0) == hole, "the place of what is kept");
            VERIFY_PART(p, 0, 8 * MIB, 4, "before what is kept");
            VERIFY_PART(p, 9 * MIB, REGION - 9 * MIB, 4, "behind what is kept");
            if (i % 2)
                VERIFY_ZERO(hole, MIB / 2, "new memory in the place of what is kept");
            _exit(0);
        }
        child_was_right(pid, "the child");
    }
    VERIFY(p, REGION, 4, "the parent's");
}

/* Children that grow, by a little and by much, and fork themselves. */
static void child_grows(void)
{
    char *p = swapped_region(5);
    for (int i = 0; i < 3; i++) {
        pid_t pid = forked();
        if (pid == 0) {
            char *small = map(256 << 10), *large = map(REGION);
            fill(small, 256 << 10, 55);
            fill(large, REGION, 56);
            pid_t child = forked();
            if (child == 0) {
                VERIFY(small, 256 << 10, 55, "the child's own, small");
                VERIFY(large, REGION, 56, "the child's own");
                VERIFY(p, REGION, 5, "two generations on");
                _exit(0);
            }
            child_was_right(child, "the grandchild");
            VERIFY(p, REGION, 5, "inherited");
            VERIFY(small, 256 << 10, 55, "small");
            _exit(0);
        }
        child_was_right(pid, "the child");
    }
}

/* Children that write to all shared memory at once, while their parent writes too. */
static void all_is_copied(void)
{
    char *p = swapped_region(6);
    fill_part(p, 0, REGION / 2, 6);
    pid_t pids[3];
    for (int i = 0; i < 3; i++) {
        pids[i] = forked();
        if (pids[i] == 0) {
            for (int round = 0; round < 3; round++) {
                fill(p, REGION, 600 + 10 * i + round);
                VERIFY(p, REGION, 600 + 10 * i + round, "what I wrote");
            }
            _exit(0);
        }
        fill_part(p, 0, REGION / 2, 60 + i);
    }
    for (int i = 0; i < 3; i++)
        child_was_right(pids[i], "a writer");
    VERIFY_PART(p, 0, REGION / 2, 62, "the parent's own");
    VERIFY_PART(p, REGION / 2, REGION / 2, 6, "what the parent left");
}

/* Children that are killed at any moment. Their slots must be freed: the area has little more room than the parent
 * needs. */
static void killed_at_any_time(void)
{
    char *p = swapped_region(7);
    for (int i = 0; i < 40; i++) {
        pid_t pid = forked();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (i % 4 == 3)
                fill(p, REGION, 700 + i);
            for (;;)
                if (i % 2)
                    VERIFY(p, REGION / 8, i % 4 == 3 ? 700 + i : 7, "until it is killed");
                else
                    pause();
        }
        usleep((i * 7919) % 150000);
        CHECK(kill(pid, SIGKILL) == 0, "kill");
        waitpid(pid, NULL, 0);
        if (i % 8 == 7)
            press(PRESSURE / 2);
    }
    VERIFY(p, REGION, 7, "the parent's");
}

/* Anonymous memory of this process and `other`, in KiB, shared pages once. */
static uint64_t held_by_both(pid_t other)
{
    uint64_t sum = 0;
    pid_t pids[] = {getpid(), other};
    for (int i = 0; i < 2; i++) {
        char path[64], line[128];
        snprintf(path, sizeof path, "/proc/%d/smaps_rollup", pids[i]);
        FILE *file = fopen(path, "r");
        CHECK(file, "%s", path);
        unsigned long long kib;
        while (fgets(line, sizeof line, file))
            if (sscanf(line, "Pss_Anon: %llu", &kib) == 1)
                sum += kib;
        fclose(file);
    }
    return sum;
}

/* The parent writes to all memory that it shares with an idle child: the copied pages are the child's alone. */
static void parent_writes(void)
{
    char *p = swapped_region(8);
    fill(p, REGION, 8);
    pid_t pid = forked();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    uint64_t most = 0, most_after = 0;
    for (int round = 0; round < 100; round++) {
        if (round < 48)
            fill_part(p, round * MIB, MIB, 80);
        else
            usleep(10000);
        uint64_t held = held_by_both(pid);
        most = held > most ? held : most;
        if (round >= 60 && held > most_after)
            most_after = held;
    }
    CHECK(kill(pid, SIGKILL) == 0, "kill");
    waitpid(pid, NULL, 0);
    VERIFY_PART(p, 0, REGION, 80, "the parent's own");
    note("most_kib", most);
    note("held_kib", most_after);
}

/* Workers that read their parent's memory for a while, which fits the limit once, but not four times; each also writes
 * to a little of it. */
static void workers_read(void)
{
    char *p = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    fill(p, REGION, 9);
    pid_t pids[3];
    for (int n = 0; n < 3; n++) {
        pids[n] = forked();
        if (pids[n] == 0) {
            for (int round = 0; round < 40; round++) {
                VERIFY(p, REGION, 9, "a worker");
                usleep(20000);
            }
            fill_part(p, n * MIB, MIB, 90 + n);
            VERIFY_PART(p, n * MIB, MIB, 90 + n, "a worker's own");
            VERIFY_PART(p, 4 * MIB, REGION - 4 * MIB, 9, "a worker, in the end");
            _exit(0);
        }
    }
    for (int n = 0; n < 3; n++)
        child_was_right(pids[n], "a worker");
    VERIFY(p, REGION, 9, "the parent, in the end");
}

static volatile int over;

static uint64_t microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000ULL + now.tv_nsec / 1000;
}

/* Touches swapped memory until the fork is over; the longest touch counts. */
static void *touches(void *p)
{
    uint64_t longest = 0;
    for (size_t i = 0; !over; i++) {
        size_t at = i * 20011 % (REGION / PAGE) * PAGE;
        uint64_t began = microseconds();
        VERIFY_PART(p, at, PAGE, 9, "beside the fork");
        uint64_t took = microseconds() - began;
        longest = took > longest ? took : longest;
    }
    note("longest_us", longest);
    return NULL;
}

static void *continues(void *supervisor)
{
    usleep(1000000);
    kill((pid_t)(uintptr_t)supervisor, SIGCONT);
    return NULL;
}

/* A fork while the supervisor is stopped for a second. */
static void supervisor_is_slow(void)
{
    char *p = swapped_region(9);
    pid_t supervisor = getenv("FORESWAP_SOCKET") ? getppid() : 0;
    pthread_t touching, continuing;
    CHECK(pthread_create(&touching, NULL, touches, p) == 0, "a thread");
    usleep(50000);
    if (supervisor) {
        kill(supervisor, SIGSTOP);
        void *argument = (void *)(uintptr_t)supervisor;
        CHECK(pthread_create(&continuing, NULL, continues, argument) == 0, "a thread");
    }
    uint64_t began = microseconds();
    pid_t pid = forked();
    if (pid == 0) {
        VERIFY(p, REGION, 9, "in the child");
        _exit(0);
    }
    note("fork_us", microseconds() - began);
    over = 1;
    pthread_join(touching, NULL);
    if (supervisor)
        pthread_join(continuing, NULL);
    child_was_right(pid, "the child");
    VERIFY(p, REGION, 9, "in the end");
}

static const struct part parts[] = {
    {"supervisor_is_slow", supervisor_is_slow},
    {"workers_read", workers_read},
    {"storm", storm},
    {"parent_discards", parent_discards},
    {"child_changes", child_changes},
    {"kept_from_children", kept_from_children},
    {"child_grows", child_grows},
    {"all_is_copied", all_is_copied},
    {"killed_at_any_time", killed_at_any_time},
    {"parent_writes", parent_writes},
};

int main(int argc, char **argv)
{
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
