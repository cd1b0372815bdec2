/* Mappings of files that are larger than the limit: what is read is what read(2) reads, whatever is done to mapping and
 * file meanwhile. A file holds the fill with its seed, and half a page more. */
#include "forks.h"

#include <setjmp.h>
#include <sys/stat.h>

#define SIZE (96 * MIB)
#define TAIL 2000

static char path[64];

/* A file NAME.mapped with the fill of `seed`. */
static void make(const char *name, uint64_t seed)
{
    snprintf(path, sizeof path, "%s.mapped", name);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(fd >= 0, "%s", path);
    char *block = malloc(MIB);
    for (size_t at = 0; at < SIZE; at += MIB) {
        uint64_t *words = (uint64_t *)block;
        for (size_t i = 0; i < MIB / 8; i++)
            words[i] = word(seed, at / 8 + i);
        CHECK(write(fd, block, MIB) == (ssize_t)MIB, "write");
    }
    memset(block, 'x', TAIL);
    CHECK(write(fd, block, TAIL) == TAIL, "write");
    free(block);
    CHECK(fsync(fd) == 0, "fsync");
    close(fd);
}

static int opened(int flags)
{
    int fd = open(path, flags | O_CLOEXEC);
    CHECK(fd >= 0, "%s", path);
    return fd;
}

static char *mapped_as(int protection, int flags, int open_flags)
{
    int fd = opened(open_flags);
    char *p = mmap(NULL, SIZE + TAIL, protection, flags, fd, 0);
    CHECK(p != MAP_FAILED, "mmap");
    close(fd);
    return p;
}

static char *shared(void) { return mapped_as(PROT_READ, MAP_SHARED, O_RDONLY); }
static char *private(void) { return mapped_as(PROT_READ | PROT_WRITE, MAP_PRIVATE, O_RDONLY); }

static void verify_tail(const char *p, const char *what)
{
    for (size_t i = 0; i < PAGE; i++)
        CHECK(p[SIZE + i] == (i < TAIL ? 'x' : 0), "%s: byte %zu of the last page", what, i);
}

static sigjmp_buf back;
static void on_signal(int number) { siglongjmp(back, number); }

/* The signal that a read of `p` raises; 0: none. */
static int signal_at(const volatile char *p)
{
    signal(SIGBUS, on_signal);
    signal(SIGSEGV, on_signal);
    int number = sigsetjmp(back, 1);
    if (number == 0)
        (void)*p;
    signal(SIGBUS, SIG_DFL);
    signal(SIGSEGV, SIG_DFL);
    return number;
}

/* How much of the mapping is in memory: far less than the file if it is served under the limit. */
static void note_resident(const char *p) { note("resident", present_pages(p, SIZE)); }

static void reads(void)
{
    make("reads", 1);
    char *p = shared(), *q = private();
    VERIFY(p, SIZE, 1, "shared");
    note_resident(p);
    verify_tail(p, "shared");
    VERIFY(q, SIZE, 1, "private");
    verify_tail(q, "private");
    for (int i = 0; i < 20000; i++) {
        size_t at = mix(i) % (SIZE / PAGE) * PAGE;
        VERIFY_PART(p, at, 64, 1, "at random");
    }
    for (size_t at = SIZE; at >= MIB; at -= MIB)
        VERIFY_PART(p, at - MIB, MIB, 1, "backward");
    /* read(2) of the file, and into other mappings of it. */
    int fd = opened(O_RDONLY);
    char *block = malloc(MIB);
    for (size_t at = 0; at < SIZE; at += 8 * MIB) {
        CHECK(pread(fd, block, MIB, at) == (ssize_t)MIB, "pread");
        CHECK(memcmp(block, p + at, MIB) == 0, "read at %zu", at);
    }
    close(fd);
    CHECK(munmap(p, SIZE + TAIL) == 0 && munmap(q, SIZE + TAIL) == 0, "munmap");
    unlink(path);
}

/* A mapping that begins within the file and is longer than it. */
static void ends(void)
{
    make("ends", 2);
    int fd = opened(O_RDONLY);
    size_t from = 32 * MIB, length = SIZE - from + 5 * PAGE;
    char *p = mmap(NULL, length, PROT_READ, MAP_PRIVATE, fd, from);
    CHECK(p != MAP_FAILED, "mmap");
    VERIFY_PART(p - from, from, SIZE - from, 2, "the end of the file");
    verify_tail(p - from, "the last page");
    printf("beyond the end: %d, %d\n", signal_at(p + SIZE - from + PAGE), signal_at(p + length - 1));
    CHECK(mmap(NULL, MIB, PROT_READ, MAP_PRIVATE, fd, 100) == MAP_FAILED && errno == EINVAL, "offset");
    CHECK(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EACCES, "access");
    close(fd);
    fd = opened(O_WRONLY);
    CHECK(mmap(NULL, MIB, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EACCES, "write only");
    close(fd);
    unlink(path);
}

static void private_writes(void)
{
    make("private_writes", 3);
    char *p = private();
    for (size_t at = 0; at < SIZE; at += 4 * MIB)
        fill_part(p, at, MIB, 30);
    for (int turn = 0; turn < 2; turn++)
        for (size_t at = 0; at < SIZE; at += 4 * MIB) {
            VERIFY_PART(p, at, MIB, 30, "what was written");
            VERIFY_PART(p, at + MIB, 3 * MIB, 3, "what was not");
        }
    note_resident(p);
    CHECK(madvise(p, 8 * MIB, MADV_DONTNEED) == 0, "discard");
    VERIFY_PART(p, 0, 8 * MIB, 3, "what was discarded");
    VERIFY_PART(p, 8 * MIB, MIB, 30, "what was not discarded");
    char *q = shared();
    VERIFY(q, SIZE, 3, "the file");
    unlink(path);
}

static void advice(void)
{
    make("advice", 4);
    char *p = shared();
    int all[] = {MADV_SEQUENTIAL, MADV_RANDOM, MADV_NORMAL, MADV_WILLNEED, MADV_DONTNEED, MADV_COLD};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK(madvise(p, SIZE, all[i]) == 0, "advice %d", all[i]);
        VERIFY_PART(p, i * 8 * MIB, 16 * MIB, 4, "after advice");
    }
    CHECK(madvise(p, 8 * MIB, MADV_POPULATE_READ) == 0, "populate");
    VERIFY(p, SIZE, 4, "populated");
    CHECK(msync(p, SIZE, MS_SYNC) == 0, "msync");
    CHECK(mprotect(p + MIB, MIB, PROT_NONE) == 0, "mprotect");
    printf("no access: %d\n", signal_at(p + MIB));
    CHECK(mprotect(p + MIB, MIB, PROT_READ) == 0, "mprotect");
    VERIFY(p, SIZE, 4, "after mprotect");
    int fd = opened(O_RDONLY);
    char *q = mmap(NULL, SIZE, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    CHECK(q != MAP_FAILED, "populated");
    VERIFY(q, SIZE, 4, "mapped populated");
    unlink(path);
}

static void moves(void)
{
    make("moves", 5);
    char *p = private(), *to = map(SIZE);
    fill_part(p, 40 * MIB, MIB, 50);
    char *q = mremap(p, 64 * MIB, 64 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    CHECK(q == to, "moved");
    VERIFY_PART(q, 0, 40 * MIB, 5, "what moved");
    VERIFY_PART(q, 40 * MIB, MIB, 50, "what moved and was written to");
    VERIFY_PART(q, 41 * MIB, 23 * MIB, 5, "what moved");
    VERIFY_PART(p, 64 * MIB, 32 * MIB, 5, "what did not");
    CHECK(madvise(q, 64 * MIB, MADV_DONTNEED) == 0, "discard");
    VERIFY(q, 64 * MIB, 5, "discarded after the move");
    CHECK(munmap(q + 16 * MIB, 16 * MIB) == 0, "a hole");
    VERIFY(q, 16 * MIB, 5, "before the hole");
    VERIFY_PART(q, 32 * MIB, 32 * MIB, 5, "behind the hole");
    /* New memory in the hole, and another part of the file over the old. */
    char *r = mmap(q + 16 * MIB, 16 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(r == q + 16 * MIB, "in the hole");
    VERIFY_ZERO(r, 16 * MIB, "new memory");
    int fd = opened(O_RDONLY);
    CHECK(mmap(q, 8 * MIB, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 80 * MIB) == q, "over it");
    VERIFY_PART(q - 80 * MIB, 80 * MIB, 8 * MIB, 5, "another part");
    VERIFY_PART(q, 8 * MIB, 8 * MIB, 5, "the rest");
    /* It may fail; it may not invent content. */
    char *longer = mremap(q + 32 * MIB, 16 * MIB, 24 * MIB, MREMAP_MAYMOVE);
    if (longer != MAP_FAILED)
        VERIFY_PART(longer - 32 * MIB, 32 * MIB, 24 * MIB, 5, "longer");
    char *shorter = mremap(p + 64 * MIB, 32 * MIB, 8 * MIB, MREMAP_MAYMOVE);
    CHECK(shorter == p + 64 * MIB, "shorter");
    VERIFY_PART(p, 64 * MIB, 8 * MIB, 5, "shorter");
    unlink(path);
}

static void forks(void)
{
    make("forks", 6);
    char *p = private(), *q = shared();
    fill_part(p, 0, 8 * MIB, 60);
    VERIFY_PART(q, 0, 48 * MIB, 6, "before the fork");
    for (int turn = 0; turn < 3; turn++) {
        pid_t pid = forked();
        if (pid == 0) {
            VERIFY_PART(p, 0, 8 * MIB, 60, "the child's written part");
            VERIFY_PART(p, 8 * MIB, SIZE - 8 * MIB, 6, "the child's private mapping");
            fill_part(p, 16 * MIB, 8 * MIB, 61);
            VERIFY(q, SIZE, 6, "the child's shared mapping");
            VERIFY_PART(p, 16 * MIB, 8 * MIB, 61, "what the child wrote");
            CHECK(madvise(p, 32 * MIB, MADV_DONTNEED) == 0, "discard");
            VERIFY(p, 32 * MIB, 6, "what the child discarded");
            pid_t grandchild = forked();
            if (grandchild == 0) {
                VERIFY(q, SIZE, 6, "the grandchild's mapping");
                _exit(0);
            }
            child_was_right(grandchild, "a grandchild");
            _exit(0);
        }
        VERIFY_PART(p, 0, 8 * MIB, 60, "the parent's written part");
        VERIFY_PART(p, 8 * MIB, SIZE - 8 * MIB, 6, "the parent's mapping");
        child_was_right(pid, "a child");
    }
    /* The parent unmaps at once. */
    pid_t pid = forked();
    if (pid == 0) {
        usleep(300000);
        VERIFY(q, SIZE, 6, "after the parent's munmap");
        _exit(0);
    }
    CHECK(munmap(q, SIZE + TAIL) == 0, "munmap");
    child_was_right(pid, "a child whose parent unmapped");
    unlink(path);
}

static void forks_past_libc(void)
{
    make("forks_past_libc", 7);
    char *p = private();
    fill_part(p, 0, 8 * MIB, 70);
    VERIFY_PART(p, 8 * MIB, SIZE - 8 * MIB, 7, "before");
    fflush(stdout);
    long pid = SYS_fork;
    __asm__ volatile("syscall" : "+a"(pid) : : "rcx", "r11", "memory");
    if (pid == 0) {
        int wrong = wrong_words(p, 0, 8 * MIB, 70) || wrong_words(p, 8 * MIB, SIZE - 8 * MIB, 7);
        long number = SYS_madvise;
        register long advice __asm__("rdx") = MADV_DONTNEED;
        __asm__ volatile("syscall"
                         : "+a"(number), "+r"(advice)
                         : "D"(p), "S"(16 * MIB)
                         : "rcx", "r11", "memory");
        wrong |= number != 0 || wrong_words(p, 0, SIZE, 7);
        number = SYS_exit_group;
        __asm__ volatile("syscall" : "+a"(number) : "D"(wrong) : "rcx", "r11", "memory");
    }
    child_was_right(pid, "a child past the C library");
    unlink(path);
}

static void unlinked_and_replaced(void)
{
    make("replaced", 8);
    char *p = shared();
    VERIFY_PART(p, 0, MIB, 8, "before");
    unlink(path);
    make("replaced", 9);
    char *q = shared();
    VERIFY(p, SIZE, 8, "the unlinked file");
    VERIFY(q, SIZE, 9, "the new file");
    VERIFY(p, SIZE, 8, "the unlinked file again");
    unlink(path);
}

static void write_at(size_t at, uint64_t value)
{
    int fd = opened(O_WRONLY);
    CHECK(pwrite(fd, &value, sizeof value, at) == sizeof value, "pwrite");
    close(fd);
}

/* A shared mapping shows what is written to the file, by this process and by others. */
static void changes(void)
{
    make("changes", 10);
    char *p = shared();
    VERIFY(p, SIZE, 10, "before");
    VERIFY_PART(p, 0, 4 * MIB, 10, "before");
    write_at(MIB, 4711);
    CHECK(*(uint64_t *)(p + MIB) == 4711, "what this process wrote");
    pid_t pid = forked();
    if (pid == 0) {
        write_at(50 * MIB, 4712);
        CHECK(*(uint64_t *)(p + 50 * MIB) == 4712, "what the child wrote");
        _exit(0);
    }
    child_was_right(pid, "the child that wrote");
    CHECK(*(uint64_t *)(p + 50 * MIB) == 4712, "what the child wrote, in the parent");
    VERIFY_PART(p, 2 * MIB, 40 * MIB, 10, "what nobody wrote to");
    CHECK(truncate(path, 8 * MIB) == 0, "truncate");
    VERIFY_PART(p, 2 * MIB, 6 * MIB, 10, "what is left of the file");
    printf("beyond the new end: %d\n", signal_at(p + 9 * MIB));
    unlink(path);
}

/* Children that were forked just before: their pages in memory are those of their parent. */
static void changes_beside_forks(void)
{
    make("beside_forks", 17);
    char *p = shared();
    VERIFY_PART(p, 0, 4 * MIB, 17, "before");
    int pipes[2];
    CHECK(pipe(pipes) == 0, "pipe");
    pid_t pids[3];
    for (int i = 0; i < 3; i++)
        if ((pids[i] = forked()) == 0) {
            char byte;
            CHECK(read(pipes[0], &byte, 1) == 1, "read");
            CHECK(*(uint64_t *)(p + MIB) == 4713, "what the parent wrote");
            VERIFY_PART(p, 2 * MIB, 40 * MIB, 17, "what it did not");
            _exit(0);
        }
    write_at(MIB, 4713);
    CHECK(write(pipes[1], "abc", 3) == 3, "write");
    CHECK(*(uint64_t *)(p + MIB) == 4713, "what was written");
    for (int i = 0; i < 3; i++)
        child_was_right(pids[i], "a child");
    unlink(path);
}

/* While other threads unmap and map. */
static volatile int stop;
static void *unmaps(void *argument)
{
    uint64_t seed = (uintptr_t)argument;
    size_t turns = 0;
    while (!stop) {
        char *p = map(4 * MIB);
        fill(p, MIB, seed);
        VERIFY(p, MIB, seed, "memory of a thread");
        CHECK(munmap(p, 4 * MIB) == 0, "munmap");
        turns++;
    }
    return (void *)turns;
}

static void changes_beside_unmaps(void)
{
    make("beside", 11);
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, unmaps, (void *)(100 + i)) == 0, "thread");
    for (int turn = 0; turn < 5; turn++) {
        char *p = shared();
        VERIFY_PART(p, 0, 16 * MIB, 11, "before");
        write_at(17 * MIB, turn);
        CHECK(*(uint64_t *)(p + 17 * MIB) == (uint64_t)turn, "what was written");
        VERIFY_PART(p, 0, 16 * MIB, 11, "after");
        CHECK(munmap(p, SIZE + TAIL) == 0, "munmap");
    }
    stop = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    unlink(path);
}

static void *reads_all(void *mapping)
{
    for (size_t at = 0; at < SIZE; at += MIB)
        VERIFY_PART(mapping, (at * 7) % SIZE, MIB, 12, "a thread");
    return NULL;
}

static void threads(void)
{
    make("threads", 12);
    char *p = shared(), *q = private();
    pthread_t threads[6];
    for (int i = 0; i < 6; i++)
        CHECK(pthread_create(&threads[i], NULL, reads_all, i % 2 ? p : q) == 0, "thread");
    for (int i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    note_resident(p);
    unlink(path);
}

static void sparse(void)
{
    snprintf(path, sizeof path, "sparse.mapped");
    int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0, "sparse");
    for (size_t at = 0; at < SIZE; at += 16 * MIB)
        CHECK(pwrite(fd, "data", 4, at + 5 * PAGE) == 4, "pwrite");
    close(fd);
    char *p = shared();
    size_t bytes = 0;
    for (size_t at = 0; at < SIZE; at++)
        bytes += p[at] != 0;
    printf("%zu bytes in a sparse file\n", bytes);
    CHECK(memcmp(p + 32 * MIB + 5 * PAGE, "data", 4) == 0, "data");
    unlink(path);
}

/* Mappings that stay the kernel's. */
static void of_the_kernel(void)
{
    make("kernel", 13);
    int fd = opened(O_RDWR);
    char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *q = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0), *r = shared();
    CHECK(p != MAP_FAILED && q != MAP_FAILED, "mmap");
    fill_part(p, MIB, MIB, 130);
    VERIFY_PART(q, MIB, MIB, 130, "what was written through another mapping");
    VERIFY_PART(r, MIB, MIB, 130, "while it was open for writing");
    close(fd);
    CHECK(munmap(p, SIZE) == 0, "munmap");
    fd = opened(O_RDONLY);
    CHECK(pread(fd, q, 1, 0) < 0, "no write to a mapping for reading");
    close(fd);
    unlink(path);
}

/* A thread whose descriptors are its own: the number is that of another file in the other threads. */
static void *maps_its_own(void *number)
{
    int wanted = (intptr_t)number;
    CHECK(unshare(CLONE_FILES) == 0, "unshare");
    int fd = opened(O_RDONLY);
    CHECK(dup2(fd, wanted) == wanted, "dup2");
    char *p = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, wanted, 0);
    CHECK(p != MAP_FAILED, "mmap");
    VERIFY(p, SIZE, 15, "the thread's file");
    return NULL;
}

static void own_descriptors(void)
{
    make("others", 14);
    int fd = opened(O_RDONLY);
    char *p = shared();
    make("own", 15);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, maps_its_own, (void *)(intptr_t)fd) == 0, "thread");
    pthread_join(thread, NULL);
    VERIFY(p, SIZE, 14, "the other file");
    unlink("others.mapped");
    unlink(path);
}

/* New memory is present at once: the engine cannot serve it. */
static void locked(void)
{
    make("locked", 16);
    CHECK(mlockall(MCL_FUTURE) == 0, "mlockall");
    char *p = private(), *q = shared();
    VERIFY(p, SIZE, 16, "private");
    VERIFY(q, SIZE, 16, "shared");
    unlink(path);
}

/* A file that another user has made, given.mapped, and writes to when its sum is known: that is seen, if late. */
static void of_another_user(void)
{
    snprintf(path, sizeof path, "given.mapped");
    int fd = opened(O_RDONLY);
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0, "fstat");
    volatile uint64_t *p = mmap(NULL, stat.st_size, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(p != MAP_FAILED, "mmap");
    uint64_t sum = 0;
    for (off_t i = 0; i < stat.st_size / 8; i++)
        sum += p[i];
    note_peak();
    uint64_t first = p[0];
    printf("sum %lx\n", sum);
    fflush(stdout);
    for (int i = 0; i < 1000 && p[0] == first; i++)
        usleep(10000);
    printf("%s\n", p[0] == first ? "old" : "changed");
}

static const struct part parts[] = {
    {"reads", reads}, {"ends", ends}, {"private_writes", private_writes}, {"advice", advice}, {"moves", moves},
    {"forks", forks}, {"forks_past_libc", forks_past_libc}, {"unlinked_and_replaced", unlinked_and_replaced},
    {"changes", changes}, {"changes_beside_forks", changes_beside_forks}, {"changes_beside_unmaps", changes_beside_unmaps}, {"threads", threads}, {"sparse", sparse},
    {"own_descriptors", own_descriptors}, {"locked", locked}, {"of_the_kernel", of_the_kernel}, {"of_another_user", of_another_user},
};

int main(int argc, char **argv)
{
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
