/* munmap, madvise, mremap, mprotect, mlock and MAP_FIXED on memory whose pages are swapped out must have the same
 * effect as without foreswap. */
#include "check.h"

#include <setjmp.h>
#include <sys/resource.h>

#define REGION (48 * MIB)
#define THIRD (REGION / 3)
#define PRESSURE 128
#define swapped_region(seed) swapped_memory(REGION, seed, PRESSURE)

static int is_mapped(void *p)
{
    return msync(p, PAGE, MS_ASYNC) == 0;
}

static void munmap_partial(void)
{
    char *p = swapped_region(1);
    CHECK(munmap(p + THIRD, THIRD) == 0, "munmap of the middle");
    CHECK(!is_mapped(p + THIRD), "the hole is still mapped");
    VERIFY_PART(p, 0, THIRD, 1, "before the hole");
    VERIFY_PART(p, 2 * THIRD, THIRD, 1, "after the hole");
    char *again = mmap(p + THIRD, THIRD, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(again == p + THIRD, "mapping the hole again");
    VERIFY_ZERO(again, THIRD, "fresh memory where swapped memory was");
    fill_part(p, THIRD, THIRD, 2);
    press(PRESSURE);
    VERIFY_PART(p, 0, THIRD, 1, "first third");
    VERIFY_PART(p, THIRD, THIRD, 2, "second third");
    VERIFY_PART(p, 2 * THIRD, THIRD, 1, "last third");
    CHECK(munmap(p, REGION) == 0, "munmap of all");
    CHECK(!is_mapped(p) && !is_mapped(p + REGION - PAGE), "still mapped");
}

static void dontneed(void)
{
    char *p = swapped_region(3);
    CHECK(madvise(p + THIRD, THIRD, MADV_DONTNEED) == 0, "MADV_DONTNEED");
    VERIFY_PART(p, 0, THIRD, 3, "before the discarded part");
    VERIFY_ZERO(p + THIRD, THIRD, "discarded while swapped out");
    VERIFY_PART(p, 2 * THIRD, THIRD, 3, "after the discarded part");
    /* Present, clean pages that have a copy in the swap area. */
    CHECK(madvise(p, THIRD, MADV_DONTNEED) == 0, "MADV_DONTNEED");
    VERIFY_ZERO(p, THIRD, "discarded while present");
    fill_part(p, 0, 2 * THIRD, 4);
    press(PRESSURE);
    VERIFY_PART(p, 0, 2 * THIRD, 4, "written after the discard");
    VERIFY_PART(p, 2 * THIRD, THIRD, 3, "never discarded");
}

static void dontneed_single_pages(void)
{
    char *p = swapped_region(5);
    for (size_t i = 0; i < REGION / PAGE; i += 3)
        CHECK(madvise(p + i * PAGE, PAGE, MADV_DONTNEED) == 0, "MADV_DONTNEED");
    press(PRESSURE);
    for (size_t i = 0; i < REGION / PAGE; i++) {
        if (i % 3 == 0)
            VERIFY_ZERO(p + i * PAGE, PAGE, "a discarded page");
        else
            VERIFY_PART(p, i * PAGE, PAGE, 5, "a page between discarded ones");
    }
}

static void madv_free(void)
{
    char *p = swapped_region(6);
    CHECK(madvise(p + THIRD, THIRD, MADV_FREE) == 0, "MADV_FREE");
    for (size_t i = THIRD / PAGE; i < 2 * THIRD / PAGE; i++) {
        const uint64_t *words = (void *)(p + i * PAGE);
        int old = wrong_words(p, i * PAGE, PAGE, 6) == 0, zero = 1;
        for (size_t w = 0; w < PAGE / 8; w++)
            zero &= words[w] == 0;
        CHECK(old || zero, "page %zu is neither old nor zero", i);
    }
    fill_part(p, THIRD, THIRD / 2, 7);
    press(PRESSURE);
    VERIFY_PART(p, THIRD, THIRD / 2, 7, "written after MADV_FREE");
    VERIFY_PART(p, 0, THIRD, 6, "before");
    VERIFY_PART(p, 2 * THIRD, THIRD, 6, "after");
}

static void mremap_grow(void)
{
    char *p = swapped_region(8);
    p = mremap(p, REGION, 2 * REGION, MREMAP_MAYMOVE);
    CHECK(p != MAP_FAILED, "mremap to grow");
    VERIFY_PART(p, 0, REGION, 8, "the old part");
    VERIFY_ZERO(p + REGION, REGION, "the new part");
    fill_part(p, REGION, REGION, 8);
    press(PRESSURE);
    VERIFY(p, 2 * REGION, 8, "all of it");
}

static void mremap_shrink(void)
{
    char *p = swapped_region(9);
    char *same = mremap(p, REGION, THIRD, 0);
    CHECK(same == p, "mremap to shrink");
    CHECK(!is_mapped(p + THIRD) && !is_mapped(p + REGION - PAGE), "the tail is still mapped");
    VERIFY(p, THIRD, 9, "the rest");
    char *tail = mmap(p + THIRD, THIRD, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(tail == p + THIRD, "mapping the tail again");
    VERIFY_ZERO(tail, THIRD, "the tail");
    press(PRESSURE);
    VERIFY(p, THIRD, 9, "the rest, again");
}

static void mremap_move(void)
{
    char *p = swapped_region(10);
    char *space = mmap(NULL, 2 * REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(space != MAP_FAILED, "reserving");
    char *moved = mremap(p, REGION, REGION, MREMAP_MAYMOVE | MREMAP_FIXED, space + REGION / 2);
    CHECK(moved == space + REGION / 2, "moving");
    CHECK(!is_mapped(p), "the old place is still mapped");
    VERIFY(moved, REGION, 10, "moved while swapped out");
    press(PRESSURE);
    /* A part out of the middle, over memory that is in use. */
    char *other = map(REGION);
    fill(other, REGION, 11);
    press(PRESSURE);
    char *part = mremap(moved + THIRD, THIRD, THIRD, MREMAP_MAYMOVE | MREMAP_FIXED, other + THIRD);
    CHECK(part == other + THIRD, "moving a part over other memory");
    CHECK(!is_mapped(moved + THIRD), "the part's old place is still mapped");
    VERIFY_PART(moved, 0, THIRD, 10, "before the part");
    VERIFY_PART(moved, 2 * THIRD, THIRD, 10, "after the part");
    VERIFY_PART(other, 0, THIRD, 11, "other memory before");
    VERIFY_PART(other, 2 * THIRD, THIRD, 11, "other memory after");
    const uint64_t *words = (void *)part;
    for (size_t i = 0; i < THIRD / 8; i++)
        CHECK(words[i] == word(10, THIRD / 8 + i), "word %zu of the moved part", i);
}

/* Memory right above a small guard looks like a thread's stack. Memory that grows there is still managed, as it
 * was before. */
static void above_a_guard(void)
{
    const size_t guard = 4 * PAGE, more = 8 * MIB;
    char *p = swapped_region(12);
    char *space = mmap(NULL, guard + REGION + more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(space != MAP_FAILED, "reserving");
    char *moved = mremap(p, REGION, REGION + more, MREMAP_MAYMOVE | MREMAP_FIXED, space + guard);
    CHECK(moved == space + guard, "mremap above a guard");
    fill_part(moved, REGION, more, 13);
    VERIFY_PART(moved, 0, REGION, 12, "what moved");
    press(PRESSURE);
    VERIFY_PART(moved, REGION, more, 13, "what grew");
    VERIFY_PART(moved, 0, REGION, 12, "what moved, later");
}

static void mremap_dontunmap(void)
{
    char *p = swapped_region(12);
    char *moved = mremap(p, REGION, REGION, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    CHECK(moved != MAP_FAILED && moved != p, "MREMAP_DONTUNMAP");
    VERIFY(moved, REGION, 12, "the new place");
    VERIFY_ZERO(p, REGION, "the old place");
    fill(p, REGION, 13);
    press(PRESSURE);
    VERIFY(moved, REGION, 12, "the new place, again");
    VERIFY(p, REGION, 13, "the old place, written again");
}

static void map_fixed(void)
{
    char *p = swapped_region(14);
    CHECK(mmap(p + THIRD, THIRD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
               -1, 0) == p + THIRD, "MAP_FIXED over swapped memory");
    VERIFY_ZERO(p + THIRD, THIRD, "what MAP_FIXED put there");
    FILE *file = tmpfile();
    CHECK(file, "a temporary file");
    for (uint64_t i = 0; i < PAGE * 16 / 8; i++)
        fwrite(&(uint64_t){word(15, i)}, 8, 1, file);
    fflush(file);
    CHECK(mmap(p + 2 * THIRD, PAGE * 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
               fileno(file), 0) == p + 2 * THIRD, "a file over swapped memory");
    VERIFY(p + 2 * THIRD, PAGE * 16, 15, "the file");
    VERIFY_PART(p, 2 * THIRD + PAGE * 16, THIRD - PAGE * 16, 14, "after the file");
    fill_part(p, THIRD, THIRD, 16);
    press(PRESSURE);
    VERIFY_PART(p, 0, THIRD, 14, "first third");
    VERIFY_PART(p, THIRD, THIRD, 16, "second third");
    VERIFY(p + 2 * THIRD, PAGE * 16, 15, "the file, again");
}

static sigjmp_buf escape;
static volatile siginfo_t seen;

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    *(siginfo_t *)&seen = *info;
    siglongjmp(escape, 1);
}

/* The si_code of the SIGSEGV that an access raises; 0 when it raises none. */
static int fault_code(volatile char *p, int write_it)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, old;
    sigaction(SIGSEGV, &action, &old);
    int code = 0;
    if (sigsetjmp(escape, 1) == 0) {
        if (write_it)
            *p = 1;
        else
            (void)*p;
    } else {
        CHECK(seen.si_signo == SIGSEGV && seen.si_addr == (void *)p, "address of the fault");
        code = seen.si_code;
    }
    sigaction(SIGSEGV, &old, NULL);
    return code;
}

static void mprotect_read(void)
{
    char *p = swapped_region(17);
    CHECK(mprotect(p, REGION, PROT_READ) == 0, "PROT_READ");
    CHECK(fault_code(p + THIRD + 8, 1) == SEGV_ACCERR, "a write to swapped read-only memory");
    VERIFY(p, REGION, 17, "read-only");
    CHECK(fault_code(p + THIRD + 8, 1) == SEGV_ACCERR, "a write to present read-only memory");
    press(PRESSURE);
    CHECK(mprotect(p, THIRD, PROT_READ | PROT_WRITE) == 0, "back to writing");
    fill_part(p, 0, THIRD, 18);
    press(PRESSURE);
    VERIFY_PART(p, 0, THIRD, 18, "written again");
    VERIFY_PART(p, THIRD, 2 * THIRD, 17, "still read-only");
}

static void mprotect_none(void)
{
    char *p = swapped_region(19);
    CHECK(mprotect(p + THIRD, THIRD, PROT_NONE) == 0, "PROT_NONE");
    CHECK(fault_code(p + THIRD, 0) == SEGV_ACCERR, "a read of PROT_NONE memory");
    VERIFY_PART(p, 0, THIRD, 19, "before");
    VERIFY_PART(p, 2 * THIRD, THIRD, 19, "after");
    press(PRESSURE);
    CHECK(mprotect(p + THIRD, THIRD, PROT_READ | PROT_WRITE) == 0, "back");
    VERIFY(p, REGION, 19, "what PROT_NONE hid");
}

/* Reserve much, commit a little at a time, as the JVM, Go and glibc's arenas do. */
static void reserve_and_commit(void)
{
    size_t reserved = 512 * MIB, committed = 96 * MIB, step = MIB;
    char *p = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED, "reserving");
    for (size_t at = 0; at < committed; at += step) {
        CHECK(mprotect(p + at, step, PROT_READ | PROT_WRITE) == 0, "committing");
        fill_part(p, at, step, 20);
    }
    CHECK(fault_code(p + committed, 1) == SEGV_ACCERR, "beyond the committed part");
    press(PRESSURE);
    VERIFY(p, committed, 20, "the committed part");
    CHECK(madvise(p, committed, MADV_DONTNEED) == 0 && mprotect(p, committed, PROT_NONE) == 0,
          "giving back");
    CHECK(fault_code(p, 0) == SEGV_ACCERR, "the part given back");
    CHECK(mprotect(p, committed, PROT_READ | PROT_WRITE) == 0, "committing again");
    VERIFY_ZERO(p, committed, "committed again");
}

static void segv(void)
{
    char *p = swapped_region(21);
    CHECK(munmap(p + THIRD, PAGE) == 0, "a hole");
    CHECK(fault_code(p + THIRD, 0) == SEGV_MAPERR, "a read of the hole");
    CHECK(fault_code(p + THIRD, 1) == SEGV_MAPERR, "a write to the hole");
    CHECK(fault_code((char *)16, 0) == SEGV_MAPERR, "a null pointer");
    VERIFY_PART(p, 0, THIRD, 21, "before the hole");
    VERIFY_PART(p, THIRD + PAGE, 2 * THIRD - PAGE, 21, "after the hole");
}

static void mlock_part(void)
{
    size_t locked = 4 * MIB;
    char *p = swapped_region(22);
    CHECK(mlock(p + THIRD, locked) == 0, "mlock");
    CHECK(present_pages(p + THIRD, locked) == locked / PAGE, "mlock brings all in");
    press(PRESSURE);
    CHECK(present_pages(p + THIRD, locked) == locked / PAGE, "locked memory stays");
    VERIFY(p, REGION, 22, "with a locked part");
    fill_part(p, THIRD, locked, 23);
    CHECK(munlock(p + THIRD, locked) == 0, "munlock");
    press(PRESSURE);
    VERIFY_PART(p, 0, THIRD, 22, "before");
    VERIFY_PART(p, THIRD, locked, 23, "locked once");
    VERIFY_PART(p, THIRD + locked, 2 * THIRD - locked, 22, "after");
}

static void mlock_all(void)
{
    char *p = swapped_region(24);
    CHECK(munmap(p + THIRD, 2 * THIRD) == 0, "munmap");
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0, "mlockall");
    CHECK(present_pages(p, THIRD) == THIRD / PAGE, "mlockall brings all in");
    char *q = map(8 * MIB);
    fill(q, 8 * MIB, 25);
    VERIFY(p, THIRD, 24, "locked");
    CHECK(munlockall() == 0, "munlockall");
    press(PRESSURE);
    VERIFY(p, THIRD, 24, "locked once");
    VERIFY(q, 8 * MIB, 25, "mapped while all was locked");
}

static void advice(void)
{
    char *p = swapped_region(26);
    CHECK(madvise(p, THIRD, MADV_WILLNEED) == 0, "MADV_WILLNEED");
    CHECK(madvise(p, THIRD, MADV_HUGEPAGE) == 0 || errno == EINVAL, "MADV_HUGEPAGE");
    CHECK(madvise(p, THIRD, MADV_NOHUGEPAGE) == 0 || errno == EINVAL, "MADV_NOHUGEPAGE");
    CHECK(madvise(p, REGION, MADV_SEQUENTIAL) == 0, "MADV_SEQUENTIAL");
    CHECK(madvise(p, 4 * MIB, MADV_POPULATE_READ) == 0, "MADV_POPULATE_READ");
    CHECK(madvise(p + THIRD, 4 * MIB, MADV_POPULATE_WRITE) == 0, "MADV_POPULATE_WRITE");
    VERIFY(p, REGION, 26, "after advice");
    CHECK(madvise(p, THIRD, MADV_COLD) == 0, "MADV_COLD");
    CHECK(madvise(p, THIRD, MADV_PAGEOUT) == 0, "MADV_PAGEOUT");
    CHECK(madvise(p, REGION, MADV_NORMAL) == 0, "MADV_NORMAL");
    press(PRESSURE);
    VERIFY(p, REGION, 26, "after all advice");
}

static void beside_shared_and_file(void)
{
    char *shared = mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED, "shared memory");
    fill(shared, 16 * MIB, 27);
    char *p = swapped_region(28);
    VERIFY(shared, 16 * MIB, 27, "shared memory");
    VERIFY(p, REGION, 28, "private memory");
}

/* Huge and nearly empty: its tables must not grow with its size. */
static void sparse(void)
{
    size_t size = 64UL << 30, step = 8 * MIB;
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED, "64 GiB of address space");
    madvise(p, size, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < size; at += step)
        *(uint64_t *)(p + at) = word(29, at);
    press(PRESSURE);
    for (size_t at = 0; at < size; at += step)
        CHECK(*(uint64_t *)(p + at) == word(29, at), "word at %zu", at);
    CHECK(munmap(p, size) == 0, "munmap");
}

static void *deep(void *unused)
{
    (void)unused;
    char on_stack[32 * MIB];
    fill(on_stack, sizeof on_stack, 30);
    press(PRESSURE);
    note_absent("absent", (char *)(((uintptr_t)on_stack + PAGE) & ~(PAGE - 1)), sizeof on_stack - 2 * PAGE);
    VERIFY(on_stack, sizeof on_stack, 30, "a thread's stack");
    return NULL;
}

static void thread_stack(void)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 * MIB);
    pthread_t thread;
    CHECK(pthread_create(&thread, &attributes, deep, NULL) == 0, "a thread");
    pthread_join(thread, NULL);
}

/* All at once, and before there is an engine. */
static void map_populate(void)
{
    const size_t size = 3 * REGION;
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CHECK(p != MAP_FAILED, "populated memory");
    VERIFY_ZERO(p, size, "populated");
    fill(p, size, 34);
    char *closed = mmap(NULL, REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CHECK(closed != MAP_FAILED && mprotect(closed, REGION, PROT_READ) == 0, "populated without access");
    VERIFY_ZERO(closed, REGION, "never written");
    note_absent("absent", p, size);
    VERIFY(p, size, 34, "populated memory");
}

/* A child calls this on all of its memory; the kernel kills it at the next instruction. */
static void unmap_everything(void)
{
    char *p = swapped_region(35);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        VERIFY_PART(p, 0, THIRD, 35, "in the child");
        munmap(NULL, (1UL << 47) - PAGE);
        _exit(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "the child ended with %x", status);
    VERIFY(p, REGION, 35, "in the parent");
    /* The program cannot unmap memory that does not belong to it, and continues. */
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL, "the map");
    char line[512];
    unsigned long start, end;
    while (fgets(line, sizeof line, maps) != NULL)
        if (strstr(line, "foreswap") != NULL && sscanf(line, "%lx-%lx", &start, &end) == 2)
            CHECK(munmap((void *)start, end - start) == 0, "munmap of %s", line);
    fclose(maps);
    press(PRESSURE);
    VERIFY(p, REGION, 35, "after that");
    CHECK(munmap(p, 1UL << 63) == -1 && errno == EINVAL, "more than there is");
    CHECK(munmap(p + 1, PAGE) == -1 && errno == EINVAL, "no page");
    CHECK(munmap(p, 0) == -1 && errno == EINVAL, "nothing");
    VERIFY(p, REGION, 35, "after what was refused");
}

/* Straight to the kernel, past every wrapper of libc. */
static long kernel(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static void raw_calls(void)
{
    char *p = swapped_region(31);
    CHECK(kernel(SYS_munmap, (long)p, THIRD, 0, 0, 0, 0) == 0, "munmap");
    CHECK(!is_mapped(p), "still mapped");
    CHECK(kernel(SYS_madvise, (long)(p + THIRD), THIRD, MADV_DONTNEED, 0, 0, 0) == 0, "madvise");
    VERIFY_ZERO(p + THIRD, THIRD, "discarded by a raw call");
    VERIFY_PART(p, 2 * THIRD, THIRD, 31, "the rest");
    char *q = (char *)kernel(SYS_mmap, 0, REGION, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK((long)q > 0, "mmap");
    fill(q, REGION, 32);
    press(PRESSURE);
    char *moved = (char *)kernel(SYS_mremap, (long)q, REGION, 2 * REGION, MREMAP_MAYMOVE, 0, 0);
    CHECK((long)moved > 0, "mremap gave %ld", (long)moved);
    VERIFY(moved, REGION, 32, "mapped and moved by raw calls");
    VERIFY_ZERO(moved + REGION, REGION, "grown by a raw call");
    VERIFY_PART(p, 2 * THIRD, THIRD, 31, "the rest, again");
    char *through = (char *)syscall(SYS_mmap, NULL, REGION, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(through != MAP_FAILED, "mmap by syscall()");
    fill(through, REGION, 33);
    press(PRESSURE);
    VERIFY(through, REGION, 33, "mapped by syscall()");
}

/* Reads and writes the pages of a region that does not fit, so that memory is short all the time. */
static struct {
    char *base;
    size_t size;
    int stop;
} busy;

static void *keep_busy(void *unused)
{
    size_t pages = busy.size / PAGE;
    for (size_t i = 1; !__atomic_load_n(&busy.stop, __ATOMIC_RELAXED); i++)
        ((volatile uint64_t *)(busy.base + mix(i) % pages * PAGE))[1]++;
    return unused;
}

/* Mappings of the region, by the kernel's map. */
static int mappings_of(const char *base, size_t size)
{
    int count = 0;
    char line[512];
    unsigned long start, end;
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps != NULL, "the map");
    while (fgets(line, sizeof line, maps) != NULL)
        count += sscanf(line, "%lx-%lx", &start, &end) == 2 && start < (uintptr_t)base + size && end > (uintptr_t)base;
    fclose(maps);
    return count;
}

/* Fresh memory, mapped and touched past every wrapper, is one mapping to the kernel at any time: while it is noticed,
 * and while room is made for it. Calls that the kernel refuses for several mappings succeed. */
static void raw_mremap(void)
{
    size_t half = 8 * MIB, gap = 3 * MIB;
    int fixed = MREMAP_MAYMOVE | MREMAP_FIXED, stays = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
    busy.size = PRESSURE * MIB;
    busy.base = map(busy.size);
    fill(busy.base, busy.size, 36);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, keep_busy, NULL) == 0, "a thread");
    for (int round = 0; round < 48; round++) {
        size_t size = 2 * half + gap + round % 8 * MIB, now = size;
        char *space = mmap(NULL, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(space != MAP_FAILED, "reserving");
        char *p = (char *)kernel(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *to;
        CHECK((long)p > 0, "mmap");
        fill_part(p, 0, half, round);
        fill_part(p, half + gap, half, round);
        /* From at once to after it was noticed and paid for. */
        for (int look = 0; look < round / 4 % 12 * 4; look++) {
            int count = mappings_of(p, size);
            CHECK(count == 1, "%d mappings at look %d in round %d", count, look, round);
            usleep(1000);
        }
        if (round % 4 == 0)
            to = (char *)kernel(SYS_mremap, (long)p, size, now = 2 * size, MREMAP_MAYMOVE, 0, 0);
        else if (round % 4 == 1)
            to = (char *)kernel(SYS_mremap, (long)p, size, size, fixed, (long)space, 0);
        else if (round % 4 == 2)
            to = (char *)kernel(SYS_mremap, (long)p, size, size, stays, 0, 0);
        else
            to = (char *)kernel(SYS_mremap, (long)p, size, now = half + gap, fixed, (long)space, 0);
        CHECK((long)to > 0, "mremap gave %ld in round %d", (long)to, round);
        if (round % 4 == 2) {
            VERIFY_ZERO(p, size, "the old place");
            CHECK(munmap(p, size) == 0, "munmap of the old place");
        }
        VERIFY_PART(to, 0, half, round, "the first part");
        VERIFY_ZERO(to + half, gap, "the gap");
        if (now >= size) {
            VERIFY_PART(to, half + gap, half, round, "the last part");
            VERIFY_ZERO(to + 2 * half + gap, now - 2 * half - gap, "what was added");
        }
        CHECK(munmap(to, now) == 0, "munmap");
        munmap(space, 2 * size);
    }
    __atomic_store_n(&busy.stop, 1, __ATOMIC_RELAXED);
    CHECK(pthread_join(thread, NULL) == 0, "the thread");
}

/* Memory that a raw call puts in the place of managed memory of the same size, while nothing else changes. */
static void raw_replaced(void)
{
    size_t pages = PRESSURE * MIB / PAGE;
    char *p = map(REGION), *other = map(pages * PAGE);
    fill(other, pages * PAGE, 43);
    fill(p, REGION, 37);
    usleep(500000);
    char *again = (char *)kernel(SYS_mmap, (long)p, REGION, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(again == p, "mmap");
    fill(p, REGION, 38);
    usleep(500000);
    for (size_t i = 0; i < pages; i++)
        fill_part(other, i * 20011 % pages * PAGE, PAGE, 44);
    VERIFY(other, pages * PAGE, 44, "other memory");
    note_absent("absent", p, REGION);
    VERIFY(p, REGION, 38, "mapped over managed memory");
}

/* A mapping beside one that a fork has shared, when the child has ended. */
static void joins_after_fork(void)
{
    char *space = mmap(NULL, 2 * REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(space != MAP_FAILED && munmap(space, 2 * REGION) == 0, "a free place");
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    char *p = mmap(space + REGION, REGION, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(p == space + REGION, "mmap");
    press(PRESSURE);
    fill(p, REGION, 39);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        usleep(500000);
        VERIFY(p, REGION, 39, "in the child");
        _exit(0);
    }
    usleep(300000);
    fill_part(p, 0, REGION, 41);
    CHECK(reap(child) == 0, "the child");
    usleep(500000);
    char *below = mmap(space, REGION, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(below == space, "mmap below");
    fill(below, REGION, 42);
    char *moved = (char *)kernel(SYS_mremap, (long)space, 2 * REGION, 2 * REGION, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0, 0);
    CHECK((long)moved > 0, "mremap gave %ld", (long)moved);
    VERIFY(moved, REGION, 42, "the new mapping");
    VERIFY(moved + REGION, REGION, 41, "the mapping above");
}

static const struct part parts[] = {
    {"munmap_partial", munmap_partial},
    {"dontneed", dontneed},
    {"dontneed_single_pages", dontneed_single_pages},
    {"madv_free", madv_free},
    {"mremap_grow", mremap_grow},
    {"mremap_shrink", mremap_shrink},
    {"mremap_move", mremap_move},
    {"above_a_guard", above_a_guard},
    {"mremap_dontunmap", mremap_dontunmap},
    {"map_fixed", map_fixed},
    {"mprotect_read", mprotect_read},
    {"mprotect_none", mprotect_none},
    {"reserve_and_commit", reserve_and_commit},
    {"segv", segv},
    {"mlock_part", mlock_part},
    {"mlock_all", mlock_all},
    {"advice", advice},
    {"beside_shared_and_file", beside_shared_and_file},
    {"sparse", sparse},
    {"thread_stack", thread_stack},
    {"map_populate", map_populate},
    {"unmap_everything", unmap_everything},
    {"raw_calls", raw_calls},
    {"raw_mremap", raw_mremap},
    {"raw_replaced", raw_replaced},
    {"joins_after_fork", joins_after_fork},
};

int main(int argc, char **argv)
{
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
