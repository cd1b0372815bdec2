/* huge_pages KIND: memory that is moved 2 MiB at a time, and operations that split it. */
#include "check.h"

#include <dirent.h>

#define HUGE (2UL << 20)
#define SIZE (192UL << 20)

static char *aligned(size_t size)
{
    char *p = map(size + HUGE);
    return (char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
}

static void verify_backward(const char *base, size_t size, uint64_t seed)
{
    for (size_t at = size; at > 0; at -= PAGE)
        VERIFY_PART(base, at - PAGE, PAGE, seed, "backward");
}

/* Fill, scan, write again: all in order. */
static void in_order(void)
{
    char *base = aligned(SIZE);
    fill(base, SIZE, 1);
    VERIFY(base, SIZE, 1, "first scan");
    VERIFY(base, SIZE, 1, "second scan");
    verify_backward(base, SIZE, 1);
    fill(base, SIZE, 2);
    VERIFY(base, SIZE, 2, "after the second fill");
}

/* Parts of huge pages are discarded, unmapped, moved, protected and shared by forks. */
static void in_parts(void)
{
    char *base = aligned(SIZE);
    for (int round = 0; round < 3; round++) {
        fill(base, SIZE, 10 + round);
        for (size_t at = 0; at < SIZE; at += 16 * HUGE) {
            size_t hole = at + 3 * PAGE, bytes = 100 * PAGE;
            CHECK(madvise(base + hole, bytes, MADV_DONTNEED) == 0, "MADV_DONTNEED");
            VERIFY_PART(base, at, 3 * PAGE, 10 + round, "before the hole");
            VERIFY_ZERO(base + hole, bytes, "the hole");
            VERIFY_PART(base, hole + bytes, HUGE - 103 * PAGE, 10 + round, "behind the hole");
            fill_part(base, hole, bytes, 10 + round);
        }
        /* Away and back, by a distance that is no multiple of 2 MiB. */
        char *space = map(40 * HUGE);
        char *to = space + 7 * PAGE;
        CHECK(mremap(base + 4 * HUGE, 8 * HUGE, 8 * HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "mremap");
        CHECK(mremap(to, 8 * HUGE, 8 * HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, base + 4 * HUGE) == base + 4 * HUGE,
              "mremap back");
        munmap(space, 40 * HUGE);
        CHECK(mprotect(base + 20 * HUGE + PAGE, 5 * HUGE, PROT_READ) == 0, "mprotect");
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            VERIFY(base, SIZE, 10 + round, "the child's memory");
            fill_part(base, 0, 16 * HUGE, 77);
            VERIFY_PART(base, 0, 16 * HUGE, 77, "what the child wrote");
            _exit(0);
        }
        VERIFY(base, SIZE, 10 + round, "the parent's memory");
        CHECK(reap(pid) == 0, "the child");
        CHECK(mprotect(base + 20 * HUGE + PAGE, 5 * HUGE, PROT_READ | PROT_WRITE) == 0, "mprotect");
        verify_backward(base, SIZE, 10 + round);
    }
}

/* Random touches after a fill in order, then in order again. */
static void scattered(void)
{
    char *base = aligned(SIZE);
    fill(base, SIZE, 3);
    for (uint64_t n = 0; n < 3000; n++) {
        size_t at = mix(n) % (SIZE / PAGE) * PAGE;
        VERIFY_PART(base, at, PAGE, 3, "scattered");
    }
    VERIFY(base, SIZE, 3, "in order again");
    VERIFY(base, SIZE, 3, "and again");
}

/* One page in each 2 MiB of 4 GiB. */
static void sparse(void)
{
    size_t size = 4UL << 30;
    char *base = aligned(size);
    for (size_t at = 0; at < size; at += HUGE)
        fill_part(base, at + 5 * PAGE, PAGE, 4);
    for (size_t at = 0; at < size; at += HUGE)
        VERIFY_PART(base, at + 5 * PAGE, PAGE, 4, "sparse");
}

/* Threads of this name that serve this process: those of the process that shares its memory. */
static uint64_t threads_named(const char *name)
{
    DIR *processes = opendir("/proc");
    CHECK(processes != NULL, "the processes");
    uint64_t count = 0;
    for (struct dirent *process; (process = readdir(processes)) != NULL;) {
        pid_t pid = atoi(process->d_name);
        if (pid == 0 || syscall(SYS_kcmp, getpid(), pid, 1 /* KCMP_VM */, 0, 0) != 0)
            continue;
        char path[600];
        snprintf(path, sizeof path, "/proc/%d/task", pid);
        DIR *tasks = opendir(path);
        for (struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;) {
            char comm[32] = "";
            snprintf(path, sizeof path, "/proc/%d/task/%s/comm", pid, task->d_name);
            int fd = open(path, O_RDONLY | O_CLOEXEC);
            if (fd < 0)
                continue;
            ssize_t got = read(fd, comm, sizeof comm - 1);
            close(fd);
            count += got > 0 && strncmp(comm, name, strlen(name)) == 0;
        }
        if (tasks != NULL)
            closedir(tasks);
    }
    closedir(processes);
    return count;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "huge_pages KIND");
    if (strcmp(argv[1], "in_order") == 0)
        in_order();
    else if (strcmp(argv[1], "in_parts") == 0)
        in_parts();
    else if (strcmp(argv[1], "scattered") == 0)
        scattered();
    else if (strcmp(argv[1], "sparse") == 0)
        sparse();
    else
        CHECK(0, "unknown kind %s", argv[1]);
    note("helpers", threads_named("fs-help"));
    printf("%s: all as it should be\n", argv[1]);
    return 0;
}
