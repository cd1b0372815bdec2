/* regions PART: arrays beyond RAM by the C interface (crates/capi), in a program that foreswap did not start. */
#include "check.h"

#include <foreswap.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#define LIMIT (16 * MIB)
#define SIZE (48 * MIB)

static void open_engine_with(const char *option)
{
    const char *options[] = {"--memory=16M", option, NULL};
    CHECK(foreswap_open(options) == 0, "foreswap_open: %s", foreswap_error());
}

static void open_engine(void)
{
    open_engine_with(NULL);
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

/* Other memory is not managed and does not count; the limit holds. */
static void limit(void)
{
    char *other = map(SIZE);
    fill(other, SIZE, 1);
    char *p = swapped(2);
    VERIFY(p, SIZE, 2, "the region");
    CHECK(present_pages(other, SIZE) == SIZE / PAGE, "%zu pages", present_pages(other, SIZE));
    uint64_t resident = figure("\"is\":\"run\"", "resident_bytes");
    CHECK(resident <= LIMIT, "%zu bytes resident", (size_t)resident);
    CHECK(total("swap_out_bytes") >= SIZE - LIMIT, "too little was swapped out");
    VERIFY(other, SIZE, 1, "other memory");
    CHECK(foreswap_set_memory("32M") == 0, "foreswap_set_memory: %s", foreswap_error());
    VERIFY(p, SIZE, 2, "the region");
    size_t present = present_pages(p, SIZE) * PAGE;
    CHECK(present > LIMIT && present <= 32 * MIB, "%zu bytes present", present);
}

/* Regions that fit are left alone; regions that no longer do are not. */
static void few_then_many(void)
{
    open_engine();
    char *small = region(4 * MIB);
    fill(small, 4 * MIB, 5);
    CHECK(total("swap_out_bytes") == 0, "swapped");
    char *p = region(SIZE);
    fill(p, SIZE, 6);
    VERIFY(small, 4 * MIB, 5, "the small region");
    VERIFY(p, SIZE, 6, "the large region");
    CHECK(total("swap_out_bytes") > SIZE - LIMIT, "not swapped");
}

static char *shared;
#define THREADS 4

static void *work(void *argument)
{
    size_t part = SIZE / THREADS, pages = part / PAGE, own = (size_t)argument;
    char *base = shared + own * part;
    for (int turn = 0; turn < 2; turn++) {
        uint64_t seed = own * 100 + turn;
        for (size_t i = 0; i < pages; i++)
            fill_part(base, i * 20011 % pages * PAGE, PAGE, seed);
        for (size_t i = 0; i < pages; i++)
            VERIFY_PART(base, i * 7919 % pages * PAGE, PAGE, seed, "a thread's part");
    }
    return NULL;
}

static void threads(void)
{
    open_engine();
    shared = region(SIZE);
    pthread_t ids[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&ids[i], NULL, work, (void *)i) == 0, "thread");
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
}

/* Regions that come and go in threads: each begins with zeros, and nothing of them is left. */
static void *churn(void *argument)
{
    uint64_t seed = (uintptr_t)argument;
    for (int turn = 0; turn < 6; turn++) {
        size_t size = (1 + mix(seed + turn) % 32) * (MIB / 2) + mix(turn) % PAGE;
        char *p = region(size);
        VERIFY_ZERO(p, size / PAGE * PAGE, "a new region");
        fill(p, size / PAGE * PAGE, seed + turn);
        VERIFY(p, size / PAGE * PAGE, seed + turn, "a region of many");
        unmap(p);
        /* Memory of another kind at the same place. */
        char *q = map(size);
        VERIFY_ZERO(q, size / PAGE * PAGE, "other memory");
        fill(q, size / PAGE * PAGE, ~seed);
        CHECK(munmap(q, size) == 0, "munmap");
    }
    return NULL;
}

static void come_and_go(void)
{
    open_engine();
    pthread_t ids[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&ids[i], NULL, churn, (void *)(i * 1000)) == 0, "thread");
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    uint64_t used = 1;
    for (int i = 0; used && i < 200; i++, usleep(10000))
        used = figure("\"areas\"", "used_bytes");
    CHECK(used == 0, "%zu bytes of the area are in use", (size_t)used);
}

/* System calls read from and write to absent pages. */
static void files(void)
{
    char *p = swapped(7);
    char name[] = "/tmp/foreswap-regions-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && unlink(name) == 0, "a file");
    for (size_t done = 0; done < SIZE;) {
        ssize_t n = write(fd, p + done, SIZE - done);
        CHECK(n > 0, "write");
        done += n;
    }
    char *q = region(SIZE);
    for (size_t done = 0; done < SIZE;) {
        ssize_t n = pread(fd, q + done, SIZE - done, done);
        CHECK(n > 0, "pread");
        done += n;
    }
    VERIFY(q, SIZE, 7, "what was written and read");
    VERIFY(p, SIZE, 7, "the source");
    struct iovec from = {p, MIB}, to = {q + 5 * MIB, MIB};
    CHECK(process_vm_readv(getpid(), &to, 1, &from, 1, 0) == (ssize_t)MIB, "process_vm_readv");
    CHECK(memcmp(p, q + 5 * MIB, MIB) == 0, "copied");
}

/* The pages of a pipe are those of the region, while these go and others come. */
static void lent(void)
{
    /* A part of a huge page that is lent keeps the rest of it from being freed, which takes long at times. */
    open_engine_with("--thp=never");
    char *p = swapped(8);
    int ends[2];
    CHECK(pipe(ends) == 0 && fcntl(ends[1], F_SETPIPE_SZ, MIB) > 0, "a pipe");
    struct iovec vector = {p + 8 * MIB, MIB / 2};
    ssize_t lent = vmsplice(ends[1], &vector, 1, 0);
    CHECK(lent > 0, "vmsplice");
    char *q = region(SIZE);
    for (int turn = 0; turn < 2; turn++)
        fill(q, SIZE, 9 + turn);
    VERIFY(q, SIZE, 10, "the other region");
    static char got[MIB];
    for (ssize_t done = 0; done < lent;) {
        ssize_t n = read(ends[0], got + done, lent - done);
        CHECK(n > 0, "read");
        done += n;
    }
    CHECK(memcmp(got, p + 8 * MIB, lent) == 0, "the pipe has other bytes than the region");
}

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

/* The program that this one becomes has an engine of its own. */
static void execs(void)
{
    VERIFY(swapped(20), SIZE, 20, "the region");
    execl("/proc/self/exe", program_invocation_name, "limit", NULL);
    CHECK(0, "exec");
}

static void advice(void)
{
    char *p = swapped(21);
    for (int number = FORESWAP_NORMAL; number <= FORESWAP_SEQUENTIAL; number++) {
        CHECK(foreswap_advise(p, SIZE, number) == 0, "%s", foreswap_error());
        VERIFY(p, SIZE, 21, "after a hint");
    }
    CHECK(foreswap_advise(p, 8 * MIB, FORESWAP_WILLNEED) == 0, "%s", foreswap_error());
    for (int i = 0; i < 500 && present_pages(p, 8 * MIB) == 0; i++)
        usleep(10000);
    VERIFY(p, 8 * MIB, 21, "after WILLNEED");
    CHECK(foreswap_advise(p, 8 * MIB, FORESWAP_PAGEOUT) == 0, "%s", foreswap_error());
    for (int i = 0; i < 500 && present_pages(p, 8 * MIB) > 0; i++)
        usleep(10000);
    CHECK(present_pages(p, 8 * MIB) == 0, "%zu pages stay", present_pages(p, 8 * MIB));
    CHECK(foreswap_advise(p + MIB, 2 * MIB, FORESWAP_COLD) == 0, "%s", foreswap_error());
    CHECK(foreswap_advise(p + MIB, 2 * MIB, FORESWAP_DISCARD) == 0, "%s", foreswap_error());
    VERIFY_ZERO(p + MIB, 2 * MIB, "what was discarded");
    VERIFY(p, MIB, 21, "what is before");
    VERIFY_PART(p, 3 * MIB, SIZE - 3 * MIB, 21, "what is behind");
}

static void fails(long result, const char *words)
{
    CHECK(result == -1, "%ld instead of an error", result);
    CHECK(strstr(foreswap_error(), words), "no \"%s\" in: %s", words, foreswap_error());
}

static void misuse(void)
{
    CHECK(foreswap_is_open() == 0 && !*foreswap_error(), "%s", foreswap_error());
    CHECK(!foreswap_map(MIB) && strstr(foreswap_error(), "foreswap_open"), "%s", foreswap_error());
    fails(foreswap_stats(NULL, 0), "foreswap_open");
    fails(foreswap_set_memory("1G"), "foreswap_open");
    fails(foreswap_open(NULL), "--memory");
    const char *lots[] = {"--memory=lots", NULL};
    fails(foreswap_open(lots), "'lots'");
    const char *strict[] = {"--memory=64M", "--strict", NULL};
    fails(foreswap_open(strict), "--strict");
    const char *nowhere[] = {"--memory=64M", "--swap=/no/such/folder", NULL};
    fails(foreswap_open(nowhere), "/no/such/folder");
    setenv("FORESWAP_COMMAND", "/no/such/command", 1);
    const char *good[] = {"--memory=16M", NULL};
    fails(foreswap_open(good), "/no/such/command could not be started: No such file");
    unsetenv("FORESWAP_COMMAND");
    CHECK(foreswap_is_open() == 0, "open");
    open_engine();
    open_engine();
    CHECK(foreswap_is_open() == 1, "not open");
    fails(foreswap_open(lots), "--memory=16M");
    CHECK(!foreswap_map(0) && strstr(foreswap_error(), "0 bytes"), "%s", foreswap_error());
    CHECK(!foreswap_map(SIZE_MAX) && strstr(foreswap_error(), "64 TiB"), "%s", foreswap_error());
    char *p = region(MIB + 1), *other = map(MIB);
    fails(foreswap_unmap(other), "is not the address of a region");
    fails(foreswap_unmap(NULL), "is not the address of a region");
    fails(foreswap_unmap(p + PAGE), "is not the address of a region");
    fails(foreswap_advise(other, PAGE, FORESWAP_COLD), "not inside of a region");
    fails(foreswap_advise(p, 2 * MIB, FORESWAP_COLD), "not inside of a region");
    fails(foreswap_advise(p, SIZE_MAX, FORESWAP_COLD), "not inside of a region");
    fails(foreswap_advise(p, PAGE, 7), "7 is no advice");
    fails(foreswap_advise(p, PAGE, -1), "-1 is no advice");
    fails(foreswap_advise(p + 1, PAGE, FORESWAP_DISCARD), "whole pages");
    fails(foreswap_set_memory(NULL), "1G");
    fails(foreswap_set_memory("x"), "memory=x");
    VERIFY_ZERO(p, MIB, "the region");
    unmap(p);
    fails(foreswap_unmap(p), "is not the address of a region");
    char little[8];
    CHECK(foreswap_stats(little, sizeof little) > 100 && strlen(little) == 7, "%s", little);
}

/* Waits with arrays alive. */
static void waits(void)
{
    char *p = swapped(22);
    printf("ready\n");
    fflush(stdout);
    char byte;
    ssize_t got = read(0, &byte, 1);
    (void)got;
    pause();
    VERIFY(p, SIZE, 22, "never reached");
}

/* Reads swapped pages again and again, until a signal ends it. */
static void reads(void)
{
    char *p = swapped(23);
    printf("ready\n");
    fflush(stdout);
    for (;;)
        VERIFY(p, SIZE, 23, "read without end");
}

/* Ends by exit() while another thread still touches an array. */
static void *touch(void *argument)
{
    for (;;)
        VERIFY(argument, SIZE, 24, "while the program ends");
}

static void exits(void)
{
    char *p = swapped(24);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, touch, p) == 0, "thread");
    usleep(20000);
}

/* A child outlives its parent, and writes what it has found to a file. */
static void left_behind(void)
{
    char *p = swapped(25);
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        char byte;
        close(ends[1]);
        /* The end of the parent. */
        CHECK(read(ends[0], &byte, 1) == 0, "read");
        VERIFY(p, SIZE, 25, "the orphan's region");
        fill(p, SIZE, 26);
        VERIFY(p, SIZE, 26, "the orphan's region, changed");
        printf("the orphan is content\n");
        fflush(stdout);
        _exit(0);
    }
}

int main(int argc, char **argv)
{
    const struct part parts[] = {
        {"limit", limit},         {"few_then_many", few_then_many}, {"threads", threads},
        {"come_and_go", come_and_go}, {"files", files},             {"lent", lent},
        {"forks", forks},         {"bare_forks", bare_forks},       {"many_forks", many_forks},
        {"forks_while_opening", forks_while_opening}, {"regions_during_forks", regions_during_forks},
        {"raw_fork", raw_fork},   {"raw_fork_unseen", raw_fork_unseen}, {"rights_given_up", rights_given_up},
        {"execs", execs},         {"advice", advice},               {"misuse", misuse},
        {"waits", waits},         {"reads", reads},                 {"exits", exits},
        {"left_behind", left_behind},
    };
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
