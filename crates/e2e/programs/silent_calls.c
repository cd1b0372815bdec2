/* Calls that change memory without a userfaultfd event, on memory that is swapped out, present, or both: they must
 * have the same effect as without foreswap. */
#include "check.h"

#include <setjmp.h>
#include <stdatomic.h>
#include <sys/uio.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define SYS_PIDFD_OPEN 434
#define SYS_PROCESS_MADVISE 440
#define SYS_MSEAL 462

#define REGION (48 * MIB)
#define THIRD (REGION / 3)
#define PRESSURE 128
#define swapped_region(seed) swapped_memory(REGION, seed, PRESSURE)

static sigjmp_buf caught;
static volatile int signal_seen;

static void on_signal(int number)
{
    signal_seen = number;
    siglongjmp(caught, 1);
}

/* The signal that a read of the byte raises, 0 for none. */
static int signal_of(const volatile char *byte)
{
    struct sigaction action = {.sa_handler = on_signal}, old[2];
    sigaction(SIGSEGV, &action, &old[0]);
    sigaction(SIGBUS, &action, &old[1]);
    signal_seen = 0;
    if (sigsetjmp(caught, 1) == 0)
        (void)*byte;
    sigaction(SIGSEGV, &old[0], NULL);
    sigaction(SIGBUS, &old[1], NULL);
    return signal_seen;
}

static int by_libc(void *at, size_t size, int advice) { return madvise(at, size, advice); }

static int by_syscall(void *at, size_t size, int advice) { return (int)syscall(SYS_madvise, at, size, advice); }

static int by_process_madvise(void *at, size_t size, int advice)
{
    int pidfd = (int)syscall(SYS_PIDFD_OPEN, getpid(), 0);
    CHECK(pidfd >= 0, "pidfd_open");
    struct iovec half[2] = {{at, size / 2}, {(char *)at + size / 2, size - size / 2}};
    ssize_t done = syscall(SYS_PROCESS_MADVISE, pidfd, half, 2UL, advice, 0);
    close(pidfd);
    errno = 0;
    return done == (ssize_t)size ? 0 : -1;
}

typedef int (*advise)(void *, size_t, int);

/* The middle third is guarded and freed again. */
static void guard_and_remove(char *p, uint64_t seed, advise way)
{
    CHECK(way(p + THIRD, THIRD, MADV_GUARD_INSTALL) == 0, "MADV_GUARD_INSTALL");
    CHECK(signal_of(p + THIRD) == SIGSEGV && signal_of(p + 2 * THIRD - 1) == SIGSEGV, "no guard");
    VERIFY_PART(p, 0, THIRD, seed, "before the guard");
    VERIFY_PART(p, 2 * THIRD, THIRD, seed, "after the guard");
    /* Discards leave guards. */
    CHECK(madvise(p + THIRD, THIRD, MADV_DONTNEED) == 0, "MADV_DONTNEED");
    CHECK(signal_of(p + THIRD + PAGE) == SIGSEGV, "a discard took the guard");
    press(PRESSURE);
    CHECK(signal_of(p + THIRD + 5 * PAGE) == SIGSEGV, "pressure took the guard");
    CHECK(way(p + THIRD, THIRD, MADV_GUARD_REMOVE) == 0, "MADV_GUARD_REMOVE");
    VERIFY_ZERO(p + THIRD, THIRD, "what was guarded");
    fill_part(p, THIRD, THIRD, seed + 1);
    press(PRESSURE);
    VERIFY_PART(p, 0, THIRD, seed, "before the guard, later");
    VERIFY_PART(p, THIRD, THIRD, seed + 1, "written after the guard");
    VERIFY_PART(p, 2 * THIRD, THIRD, seed, "after the guard, later");
}

/* Only the two calls: content that was swapped, in a frame or in memory is gone. */
static void guards_alone(void)
{
    char *p = swapped_region(21);
    VERIFY_PART(p, THIRD, MIB, 21, "brought in");
    CHECK(madvise(p, 2 * THIRD, MADV_GUARD_INSTALL) == 0, "MADV_GUARD_INSTALL");
    CHECK(madvise(p, 2 * THIRD, MADV_GUARD_REMOVE) == 0, "MADV_GUARD_REMOVE");
    VERIFY_ZERO(p, 2 * THIRD, "what was guarded");
    VERIFY_PART(p, 2 * THIRD, THIRD, 21, "what was not");
}

/* Guards are removed from memory most of which has none: it keeps its content, swapped or in memory. */
static void guards_removed_from_all(void)
{
    char *p = swapped_region(22);
    CHECK(madvise(p + THIRD, 8 * PAGE, MADV_GUARD_INSTALL) == 0, "MADV_GUARD_INSTALL");
    VERIFY_PART(p, 0, 64 * PAGE, 22, "some of it is in memory");
    CHECK(madvise(p, REGION, MADV_GUARD_REMOVE) == 0, "MADV_GUARD_REMOVE");
    VERIFY_ZERO(p + THIRD, 8 * PAGE, "what was guarded");
    VERIFY_PART(p, 0, THIRD, 22, "before the guard");
    VERIFY_PART(p, THIRD + 8 * PAGE, 2 * THIRD - 8 * PAGE, 22, "after the guard");
}

static void guards(void) { guard_and_remove(swapped_region(1), 1, by_libc); }

static void guards_by_number(void) { guard_and_remove(swapped_region(2), 2, by_syscall); }

static void guards_by_pidfd(void) { guard_and_remove(swapped_region(3), 3, by_process_madvise); }

/* A fill next to a guard, in batches, leaves the guard out. */
static void guards_beside_first_touches(void)
{
    char *p = map(REGION);
    press(PRESSURE);
    for (size_t at = 5 * PAGE; at < REGION; at += 64 * PAGE)
        CHECK(madvise(p + at, PAGE, MADV_GUARD_INSTALL) == 0, "MADV_GUARD_INSTALL");
    for (size_t page = 0; page < REGION / PAGE; page++)
        if (page % 64 != 5)
            fill_part(p, page * PAGE, PAGE, 4);
    press(PRESSURE);
    note_absent("absent", p, REGION);
    for (size_t page = 0; page < REGION / PAGE; page++) {
        if (page % 64 == 5)
            CHECK(signal_of(p + page * PAGE) == SIGSEGV, "the guard of page %zu is gone", page);
        else
            VERIFY_PART(p, page * PAGE, PAGE, 4, "beside a guard");
    }
}

/* Guards from before anything is managed. */
static void guards_before_pressure(void)
{
    char *p = map(REGION);
    fill(p, REGION, 5);
    CHECK(madvise(p + THIRD, PAGE, MADV_GUARD_INSTALL) == 0, "MADV_GUARD_INSTALL");
    CHECK(madvise(p + 2 * THIRD, 4 * PAGE, MADV_GUARD_INSTALL) == 0, "MADV_GUARD_INSTALL");
    press(PRESSURE);
    note_absent("absent", p, REGION);
    CHECK(signal_of(p + THIRD) == SIGSEGV && signal_of(p + 2 * THIRD) == SIGSEGV, "no guard");
    CHECK(madvise(p + THIRD, PAGE, MADV_GUARD_REMOVE) == 0, "MADV_GUARD_REMOVE");
    VERIFY_ZERO(p + THIRD, PAGE, "what was guarded");
    VERIFY_PART(p, THIRD + PAGE, THIRD - PAGE, 5, "between the guards");
    CHECK(signal_of(p + 2 * THIRD + 3 * PAGE) == SIGSEGV, "no second guard");
}

static void guards_and_forks(void)
{
    char *p = swapped_region(6);
    CHECK(madvise(p + THIRD, THIRD, MADV_GUARD_INSTALL) == 0, "MADV_GUARD_INSTALL");
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        CHECK(signal_of(p + THIRD) == SIGSEGV && signal_of(p + 2 * THIRD - 1) == SIGSEGV, "no guard in the child");
        CHECK(madvise(p + THIRD, THIRD / 2, MADV_GUARD_REMOVE) == 0, "MADV_GUARD_REMOVE");
        VERIFY_ZERO(p + THIRD, THIRD / 2, "what was guarded, in the child");
        CHECK(signal_of(p + THIRD + THIRD / 2) == SIGSEGV, "the other half");
        CHECK(madvise(p, THIRD / 2, MADV_GUARD_INSTALL) == 0, "MADV_GUARD_INSTALL");
        CHECK(madvise(p, THIRD / 2, MADV_GUARD_REMOVE) == 0, "MADV_GUARD_REMOVE");
        VERIFY_ZERO(p, THIRD / 2, "guarded by the child");
        VERIFY_PART(p, THIRD / 2, THIRD / 2, 6, "the child's first third");
        _exit(7);
    }
    CHECK(reap(pid) == 7, "the child");
    VERIFY_PART(p, 0, THIRD, 6, "the parent's first third");
    VERIFY_PART(p, 2 * THIRD, THIRD, 6, "the parent's last third");
    CHECK(signal_of(p + THIRD) == SIGSEGV, "no guard in the parent");
    CHECK(madvise(p + THIRD, THIRD, MADV_GUARD_REMOVE) == 0, "MADV_GUARD_REMOVE");
    VERIFY_ZERO(p + THIRD, THIRD, "what was guarded, in the parent");
}

static void guards_move(void)
{
    char *p = swapped_region(7);
    CHECK(madvise(p + THIRD, THIRD, MADV_GUARD_INSTALL) == 0, "MADV_GUARD_INSTALL");
    char *room = map(2 * REGION);
    char *q = mremap(p, REGION, REGION, MREMAP_MAYMOVE | MREMAP_FIXED, room);
    CHECK(q == room, "mremap");
    CHECK(signal_of(q + THIRD) == SIGSEGV && signal_of(q + 2 * THIRD - 1) == SIGSEGV, "no guard where it moved to");
    press(PRESSURE);
    VERIFY_PART(q, 0, THIRD, 7, "before the guard");
    VERIFY_PART(q, 2 * THIRD, THIRD, 7, "after the guard");
    CHECK(madvise(q + THIRD, THIRD, MADV_GUARD_REMOVE) == 0, "MADV_GUARD_REMOVE");
    VERIFY_ZERO(q + THIRD, THIRD, "what was guarded");
    /* Unmapped, they are gone. */
    CHECK(madvise(q, REGION, MADV_GUARD_INSTALL) == 0, "MADV_GUARD_INSTALL");
    CHECK(mmap(q, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == q, "mmap");
    VERIFY_ZERO(q, REGION, "mapped over guards");
}

/* Over huge pages, on boundaries that are not theirs. */
static void guards_in_huge_pages(void)
{
    char *room = map(REGION + 2 * MIB);
    char *p = (char *)(((uintptr_t)room + 2 * MIB - 1) & ~(2 * MIB - 1));
    fill(p, REGION, 8);
    press(PRESSURE);
    note_absent("absent", p, REGION);
    /* In order: huge pages come back. */
    VERIFY(p, REGION, 8, "before");
    for (size_t at = 2 * MIB - 3 * PAGE; at + 2 * MIB < REGION; at += 4 * MIB)
        CHECK(madvise(p + at, 7 * PAGE, MADV_GUARD_INSTALL) == 0, "MADV_GUARD_INSTALL");
    press(PRESSURE);
    for (size_t at = 2 * MIB - 3 * PAGE; at + 2 * MIB < REGION; at += 4 * MIB) {
        CHECK(signal_of(p + at) == SIGSEGV && signal_of(p + at + 6 * PAGE) == SIGSEGV, "no guard");
        VERIFY_PART(p, at - 100 * PAGE, 100 * PAGE, 8, "below");
        VERIFY_PART(p, at + 7 * PAGE, 100 * PAGE, 8, "above");
        CHECK(madvise(p + at, 7 * PAGE, MADV_GUARD_REMOVE) == 0, "MADV_GUARD_REMOVE");
        VERIFY_ZERO(p + at, 7 * PAGE, "what was guarded");
    }
}

/* If the kernel refuses, nothing is lost. */
static void refused_guards(void)
{
    char *p = swapped_region(9);
    CHECK(mlock(p + THIRD, PAGE) == 0, "mlock");
    int result = madvise(p, REGION, MADV_GUARD_INSTALL);
    int errors[2] = {result, result ? errno : 0};
    printf("guard over a locked page: %d %d\n", errors[0], errors[1]);
    CHECK(madvise(p, REGION, 12345) == -1 && errno == EINVAL, "unknown advice");
    size_t wrong = 0;
    for (size_t page = 0; page < REGION / PAGE; page++) {
        int signal = signal_of(p + page * PAGE);
        if (signal == 0)
            wrong += wrong_words(p, page * PAGE, PAGE, 9) != 0;
        printf("%d", signal != 0);
    }
    printf("\n");
    CHECK(wrong == 0, "%zu pages that are not guarded have other content", wrong);
    printf("misaligned: %d", madvise(p + 1, PAGE, MADV_GUARD_INSTALL));
    printf(" %d\n", errno);
    note("absent", 2048);
}

static atomic_int *going;

static void *fill_beside(void *at)
{
    for (uint64_t round = 0; *going; round++)
        fill(at, 4 * MIB, round);
    return NULL;
}

/* Guards come and go while other threads fault beside them. */
static void guards_beside_threads(void)
{
    static atomic_int goes = 1;
    going = &goes;
    char *p = swapped_region(10);
    char *others = map(8 * MIB);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, fill_beside, others + i * 4 * MIB) == 0, "pthread_create");
    for (size_t at = 0; at + 64 * PAGE <= THIRD; at += 64 * PAGE) {
        CHECK(madvise(p + at, 32 * PAGE, MADV_GUARD_INSTALL) == 0, "MADV_GUARD_INSTALL");
        CHECK(signal_of(p + at + 31 * PAGE) == SIGSEGV, "no guard");
        CHECK(madvise(p + at, 32 * PAGE, MADV_GUARD_REMOVE) == 0, "MADV_GUARD_REMOVE");
        VERIFY_ZERO(p + at, 32 * PAGE, "what was guarded");
        VERIFY_PART(p, at + 32 * PAGE, 32 * PAGE, 10, "beside it");
    }
    goes = 0;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    VERIFY_PART(p, THIRD, 2 * THIRD, 10, "never guarded");
}

/* Advice to oneself by a pidfd: a discard, and MADV_FREE, after which only the old content or zero is right. */
static void discards_by_pidfd(void)
{
    char *p = swapped_region(11);
    CHECK(by_process_madvise(p, THIRD, MADV_DONTNEED) == 0, "MADV_DONTNEED");
    VERIFY_ZERO(p, THIRD, "discarded");
    CHECK(by_process_madvise(p + THIRD, THIRD, MADV_FREE) == 0, "MADV_FREE");
    for (size_t page = THIRD / PAGE; page < 2 * THIRD / PAGE; page++) {
        const uint64_t *words = (void *)(p + page * PAGE);
        CHECK(words[7] == 0 || wrong_words(p, page * PAGE, PAGE, 11) == 0, "page %zu", page);
    }
    fill_part(p, THIRD, THIRD, 12);
    press(PRESSURE);
    VERIFY_PART(p, THIRD, THIRD, 12, "written after it was freed");
    VERIFY_PART(p, 2 * THIRD, THIRD, 11, "the rest");
    /* Hints to oneself change nothing. */
    for (int advice = 0; advice < 22; advice++)
        if (advice == MADV_COLD || advice == MADV_PAGEOUT || advice == MADV_WILLNEED)
            CHECK(by_process_madvise(p + 2 * THIRD, THIRD, advice) == 0, "advice %d", advice);
    VERIFY_PART(p, 2 * THIRD, THIRD, 11, "after hints");
}

static void discard_locked(void)
{
    char *p = swapped_region(13);
    CHECK(mlock(p + THIRD, MIB) == 0, "mlock");
    CHECK(madvise(p + THIRD, MIB, MADV_DONTNEED) == -1 && errno == EINVAL, "MADV_DONTNEED of locked memory");
    VERIFY_PART(p, THIRD, MIB, 13, "locked");
    CHECK(madvise(p + THIRD, 2 * MIB, MADV_DONTNEED_LOCKED) == 0, "MADV_DONTNEED_LOCKED");
    VERIFY_ZERO(p + THIRD, 2 * MIB, "discarded, locked and not");
    CHECK(munlock(p + THIRD, MIB) == 0, "munlock");
    fill_part(p, THIRD, 2 * MIB, 14);
    press(PRESSURE);
    VERIFY_PART(p, THIRD, 2 * MIB, 14, "written again");
    VERIFY_PART(p, THIRD + 2 * MIB, THIRD, 13, "the rest");
}

static void collapse_and_populate(void)
{
    char *room = map(REGION + 2 * MIB);
    char *p = (char *)(((uintptr_t)room + 2 * MIB - 1) & ~(2 * MIB - 1));
    fill(p, REGION, 15);
    press(PRESSURE);
    note_absent("absent", p, REGION);
    /* The kernel makes huge pages of present pages, or refuses. */
    for (size_t at = 0; at < REGION; at += 2 * MIB)
        madvise(p + at, 2 * MIB, MADV_COLLAPSE);
    CHECK(madvise(p, 8 * MIB, MADV_POPULATE_READ) == 0, "MADV_POPULATE_READ");
    CHECK(madvise(p + 8 * MIB, 8 * MIB, MADV_POPULATE_WRITE) == 0, "MADV_POPULATE_WRITE");
    for (size_t at = 0; at < 16 * MIB; at += 2 * MIB)
        madvise(p + at, 2 * MIB, MADV_COLLAPSE);
    VERIFY(p, REGION, 15, "after collapse");
    press(PRESSURE);
    VERIFY(p, REGION, 15, "out and in again");
}

/* Merging of equal pages by the kernel (KSM), which makes them read-only and shared. */
static void mergeable(void)
{
    char *p = map(REGION);
    for (size_t page = 0; page < REGION / PAGE; page++)
        fill_part(p + page * PAGE, 0, PAGE, page % 8);
    CHECK(madvise(p, REGION, MADV_MERGEABLE) == 0 || errno == EINVAL, "MADV_MERGEABLE");
    press(PRESSURE);
    note_absent("absent", p, REGION);
    for (size_t page = 0; page < REGION / PAGE; page++)
        VERIFY_PART(p + page * PAGE, 0, PAGE, page % 8, "mergeable");
    for (size_t page = 0; page < REGION / PAGE; page += 3)
        fill_part(p + page * PAGE, 0, PAGE, 77);
    press(PRESSURE);
    for (size_t page = 0; page < REGION / PAGE; page++)
        VERIFY_PART(p + page * PAGE, 0, PAGE, page % 3 ? page % 8 : 77, "merged and written");
}

/* Sealed memory cannot be discarded or moved; it is swapped like any other. */
static void sealed(void)
{
    char *p = swapped_region(16);
    long done = syscall(SYS_MSEAL, p + THIRD, THIRD, 0UL);
    CHECK(done == 0 || errno == ENOSYS, "mseal");
    if (done == 0)
        CHECK(munmap(p + THIRD, PAGE) == -1 && errno == EPERM, "munmap of sealed memory");
    press(PRESSURE);
    VERIFY(p, REGION, 16, "sealed");
    fill_part(p, THIRD, THIRD, 17);
    press(PRESSURE);
    VERIFY_PART(p, THIRD, THIRD, 17, "sealed and written");
}

/* Kept from children, wiped in children, and both undone. */
static void not_for_children(void)
{
    char *p = swapped_region(18);
    CHECK(madvise(p, THIRD, MADV_DONTFORK) == 0, "MADV_DONTFORK");
    CHECK(madvise(p + THIRD, THIRD, MADV_WIPEONFORK) == 0, "MADV_WIPEONFORK");
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        CHECK(signal_of(p) == SIGSEGV && signal_of(p + THIRD - 1) == SIGSEGV, "kept from children");
        VERIFY_ZERO(p + THIRD, THIRD, "wiped in children");
        VERIFY_PART(p, 2 * THIRD, THIRD, 18, "the child's");
        _exit(7);
    }
    CHECK(reap(pid) == 7, "the child");
    VERIFY(p, REGION, 18, "the parent's");
    CHECK(madvise(p, THIRD, MADV_DOFORK) == 0 && madvise(p + THIRD, THIRD, MADV_KEEPONFORK) == 0, "undone");
    pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        VERIFY(p, REGION, 18, "the second child's");
        _exit(7);
    }
    CHECK(reap(pid) == 7, "the second child");
}

/* A child that shares the memory (vfork) maps, discards and guards in it. */
static char *shared_region;

static int change_as_child(void *unused)
{
    (void)unused;
    if (madvise(shared_region, THIRD, MADV_DONTNEED) != 0)
        _exit(1);
    if (mmap(shared_region + THIRD, THIRD / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
        MAP_FAILED)
        _exit(2);
    if (madvise(shared_region + THIRD + THIRD / 2, THIRD / 2, MADV_GUARD_INSTALL) != 0)
        _exit(3);
    fill_part(shared_region, 0, THIRD / 2, 20);
    _exit(7);
}

static void changes_by_a_vfork_child(void)
{
    shared_region = swapped_region(19);
    static char stack[256 << 10] __attribute__((aligned(64)));
    pid_t pid = clone(change_as_child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
    CHECK(pid > 0, "clone");
    CHECK(reap(pid) == 7, "the child");
    press(PRESSURE);
    VERIFY_PART(shared_region, 0, THIRD / 2, 20, "written by the child");
    VERIFY_ZERO(shared_region + THIRD / 2, THIRD / 2, "discarded by the child");
    VERIFY_ZERO(shared_region + THIRD, THIRD / 2, "mapped by the child");
    CHECK(signal_of(shared_region + 2 * THIRD - 1) == SIGSEGV, "guarded by the child");
    VERIFY_PART(shared_region, 2 * THIRD, THIRD, 19, "the rest");
}

#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE 101
#endif

/* The kernel moves the content of a page whose memory may fail. MADV_HWPOISON would take a page of the machine away for
 * good: it is tried only where the kernel does not have it. */
static void offlined(void)
{
    char *p = swapped_region(21);
    fill_part(p, 0, PAGE, 22);
    char *pages[] = {p, p + THIRD, p + 2 * THIRD};
    for (int i = 0; i < 3; i++) {
        errno = 0;
        int result = madvise(pages[i], PAGE, MADV_SOFT_OFFLINE);
        printf("MADV_SOFT_OFFLINE: %d, errno %d\n", result, errno);
    }
    if (access("/proc/sys/vm/memory_failure_recovery", F_OK) != 0) {
        int result = madvise(p, PAGE, MADV_HWPOISON);
        printf("MADV_HWPOISON: %d, errno %d\n", result, errno);
    }
    press(PRESSURE);
    VERIFY_PART(p, 0, PAGE, 22, "offlined in memory");
    VERIFY_PART(p, PAGE, REGION - PAGE, 21, "offlined while it was out, and the rest");
}

int main(int argc, char **argv)
{
    static const struct part parts[] = {
        {"offlined", offlined},
        {"guards", guards},
        {"guards_removed_from_all", guards_removed_from_all},
        {"guards_alone", guards_alone},
        {"guards_by_number", guards_by_number},
        {"guards_by_pidfd", guards_by_pidfd},
        {"guards_beside_first_touches", guards_beside_first_touches},
        {"guards_before_pressure", guards_before_pressure},
        {"guards_and_forks", guards_and_forks},
        {"guards_move", guards_move},
        {"guards_in_huge_pages", guards_in_huge_pages},
        {"refused_guards", refused_guards},
        {"guards_beside_threads", guards_beside_threads},
        {"discards_by_pidfd", discards_by_pidfd},
        {"discard_locked", discard_locked},
        {"collapse_and_populate", collapse_and_populate},
        {"mergeable", mergeable},
        {"sealed", sealed},
        {"not_for_children", not_for_children},
        {"changes_by_a_vfork_child", changes_by_a_vfork_child},
    };
    return run_part(parts, sizeof parts / sizeof parts[0], argc, argv);
}
