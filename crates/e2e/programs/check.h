/* Shared by the test programs: memory filled by a formula and verified, pressure that evicts older pages, and loud
 * failure. Standard output must be equal in every run; figures that differ go to standard error as "note NAME
 * VALUE". */
#ifndef FORESWAP_E2E_CHECK_H
#define FORESWAP_E2E_CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define MIB (1UL << 20)

#define CHECK(condition, ...)                                                 \
    do {                                                                      \
        if (!(condition)) {                                                   \
            int check_errno = errno;                                          \
            printf("FAILED %s:%d: %s: ", __FILE__, __LINE__, #condition);     \
            printf(__VA_ARGS__);                                              \
            printf(" (errno %d, %s)\n", check_errno, strerror(check_errno));  \
            fflush(stdout);                                                   \
            _exit(99);                                                        \
        }                                                                     \
    } while (0)

__attribute__((unused)) static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

/* Word `i` of a region filled with `seed`. It does not compress, unless SQUEEZABLE is defined: then each word is
 * repeated eight times, except in one page in eight. */
static inline uint64_t word(uint64_t seed, uint64_t i)
{
#ifdef SQUEEZABLE
    if (i / 512 % 8 != 0)
        i &= ~7UL;
#endif
    return (seed * 0x9e3779b97f4a7c15ULL ^ i) * 0xd6e8feb86659fd93ULL + i;
}

/* Fills bytes [from, from + size) of the region at `base`. */
__attribute__((unused)) static void fill_part(void *base, size_t from, size_t size, uint64_t seed)
{
    uint64_t *words = base;
    for (size_t i = from / 8; i < (from + size) / 8; i++)
        words[i] = word(seed, i);
}

__attribute__((unused)) static void fill(void *base, size_t size, uint64_t seed)
{
    fill_part(base, 0, size, seed);
}

/* Counts words of [from, from + size) that differ from the fill with `seed`. */
__attribute__((unused)) static size_t wrong_words(const void *base, size_t from, size_t size, uint64_t seed)
{
    const uint64_t *words = base;
    size_t wrong = 0;
    for (size_t i = from / 8; i < (from + size) / 8; i++)
        wrong += words[i] != word(seed, i);
    return wrong;
}

/* Prints for each run of wrong pages how many words are wrong, how many of them zero, and the first wrong value.
 * The values are those of now; they may have been read again. */
__attribute__((unused)) static void tell_wrong(const void *base, size_t from, size_t size, uint64_t seed)
{
    const uint64_t *words = base;
    size_t first = from / PAGE, last = (from + size - 1) / PAGE;
    for (size_t page = first, run = 0, wrong = 0, zero = 0; page <= last + 1; page++) {
        size_t here = 0;
        for (size_t i = page * 512; page <= last && i < page * 512 + 512; i++) {
            if (i < from / 8 || i >= (from + size) / 8 || words[i] == word(seed, i))
                continue;
            if (wrong + here == 0)
                printf("page %zu word %zu at %p: %#lx, not %#lx; ", page, i % 512, (void *)(words + i),
                       (unsigned long)words[i], (unsigned long)word(seed, i));
            here++;
            zero += words[i] == 0;
        }
        wrong += here;
        run += here != 0;
        if (here == 0 && wrong != 0) {
            printf("%zu pages from there, %zu words wrong, %zu of them zero\n", run, wrong, zero);
            run = wrong = zero = 0;
        }
    }
}

#define VERIFY_PART(base, from, size, seed, what)                             \
    do {                                                                      \
        size_t verify_wrong = wrong_words(base, from, size, seed);            \
        if (verify_wrong != 0)                                                \
            tell_wrong(base, from, size, seed);                               \
        errno = 0;                                                            \
        CHECK(verify_wrong == 0, "%s: %zu words wrong", what, verify_wrong);  \
    } while (0)
#define VERIFY(base, size, seed, what) VERIFY_PART(base, 0, size, seed, what)

#define VERIFY_ZERO(base, size, what)                                         \
    do {                                                                      \
        const uint64_t *zero_words = (const void *)(base);                    \
        size_t zero_wrong = 0;                                                \
        for (size_t zero_i = 0; zero_i < (size) / 8; zero_i++)                \
            zero_wrong += zero_words[zero_i] != 0;                            \
        errno = 0;                                                            \
        CHECK(zero_wrong == 0, "%s: %zu words not zero", what, zero_wrong);   \
    } while (0)

__attribute__((unused)) static void *map(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap of %zu bytes", size);
    return p;
}

__attribute__((unused)) static void note(const char *name, uint64_t value)
{
    char line[128];
    int n = snprintf(line, sizeof line, "note %s %llu\n", name, (unsigned long long)value);
    ssize_t written = write(2, line, n);
    (void)written;
}

/* Pages of the region that are in memory, by the kernel's pagemap. */
__attribute__((unused)) static size_t present_pages(const void *base, size_t size)
{
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0, "pagemap");
    size_t present = 0, first = (uintptr_t)base / PAGE, pages = size / PAGE;
    for (size_t done = 0; done < pages;) {
        uint64_t entries[512];
        size_t want = pages - done < 512 ? pages - done : 512;
        ssize_t got = pread(fd, entries, want * 8, (first + done) * 8);
        CHECK(got > 0, "reading pagemap");
        for (ssize_t i = 0; i < got / 8; i++)
            present += entries[i] >> 63;
        done += got / 8;
    }
    close(fd);
    return present;
}

/* Notes how much of the region is swapped out, so that the test can require this for the check that follows. */
__attribute__((unused)) static void note_absent(const char *name, const void *base, size_t size)
{
    note(name, size / PAGE - present_pages(base, size));
}

/* Writes `mebibytes` of other memory, reads it and unmaps it: older pages are evicted. It is touched twice, so
 * that reclaim does not treat it as a stream. */
__attribute__((unused)) static void press(size_t mebibytes)
{
    size_t size = mebibytes * MIB, pages = size / PAGE;
    char *p = map(size);
    /* In random order: a scan would leave other pages in memory. */
    for (size_t i = 0; i < pages; i++)
        fill_part(p, i * 20011 % pages * PAGE, PAGE, 0xbead);
    VERIFY(p, size, 0xbead, "pressure");
    CHECK(munmap(p, size) == 0, "munmap of pressure");
}

/* A region of `size` bytes filled with `seed`, then evicted. */
__attribute__((unused)) static char *swapped_memory(size_t size, uint64_t seed, size_t mebibytes)
{
    char *p = map(size);
    fill(p, size, seed);
    press(mebibytes);
    note_absent("absent", p, size);
    return p;
}

__attribute__((unused)) static void note_peak(void)
{
    char line[256];
    FILE *f = fopen("/proc/self/status", "re");
    CHECK(f, "status");
    unsigned long kib = 0;
    while (fgets(line, sizeof line, f))
        sscanf(line, "VmHWM: %lu", &kib);
    fclose(f);
    note("peak_kib", kib);
}

__attribute__((unused)) static int reap(pid_t pid)
{
    int status;
    pid_t got;
    do
        got = waitpid(pid, &status, 0);
    while (got < 0 && errno == EINTR);
    CHECK(got == pid, "waitpid");
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* The part of a program that `argv[1]` names. */
struct part {
    const char *name;
    void (*run)(void);
};

__attribute__((unused)) static int run_part(const struct part *parts, size_t count, int argc, char **argv)
{
    CHECK(environ, "no environment");
    CHECK(strcmp(program_invocation_name, argv[0]) == 0, "named %s", program_invocation_name);
    for (size_t i = 0; i < count; i++) {
        if (argc > 1 && strcmp(parts[i].name, argv[1]) == 0) {
            parts[i].run();
            printf("%s: as it should be\n", argv[1]);
            fflush(stdout);
            note_peak();
            return 0;
        }
    }
    fprintf(stderr, "no part of that name\n");
    return 98;
}
#endif
