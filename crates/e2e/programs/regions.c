/* regions PART: arrays beyond RAM by the C interface (crates/capi), in a program that foreswap did not start. */
#include "region_forks.h"

#include <sys/uio.h>

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
    open_engine();
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

/* Memory of a region in huge pages. */
static size_t huge_bytes(const char *p, size_t size)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file, "smaps");
    char line[512];
    size_t start = 0, end = 0, kib, sum = 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "AnonHugePages: %zu kB", &kib) == 1) {
            if (start < (size_t)p + size && end > (size_t)p)
                sum += kib * 1024;
        } else {
            sscanf(line, "%zx-%zx ", &start, &end);
        }
    }
    fclose(file);
    return sum;
}

/* A region that is filled in order stays in huge pages when the memory of evicted pages is needed again. That memory
 * may be lent to the kernel, as nobody sees the calls of this program, and is replaced. */
static void huge(void)
{
    open_engine();
    CHECK(foreswap_set_memory("64M") == 0, "foreswap_set_memory: %s", foreswap_error());
    char *p = region(256 * MIB);
    for (int turn = 0; turn < 2; turn++)
        fill(p, 256 * MIB, 30 + turn);
    CHECK(huge_bytes(p, 256 * MIB) >= 32 * MIB, "%zu bytes in huge pages", huge_bytes(p, 256 * MIB));
    VERIFY(p, 256 * MIB, 31, "the region");
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
        {"huge", huge},           {"forks", forks},         {"bare_forks", bare_forks},       {"many_forks", many_forks},
        {"forks_while_opening", forks_while_opening}, {"regions_during_forks", regions_during_forks},
        {"raw_fork", raw_fork},   {"raw_fork_unseen", raw_fork_unseen}, {"rights_given_up", rights_given_up},
        {"execs", execs},         {"advice", advice},               {"misuse", misuse},
        {"waits", waits},         {"reads", reads},                 {"exits", exits},
        {"left_behind", left_behind},
    };
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
