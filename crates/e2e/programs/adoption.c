/* Memory that no wrapper of foreswap's sees, or that looks like something else. It is still managed: the process'
 * own peak stays near the limit. */
#include "check.h"

#include <aio.h>
#include <linux/userfaultfd.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <threads.h>

#define WORDS (12 * MIB)

static uint64_t first_array[WORDS], second_array[WORDS]; /* 96 MiB each */

static void static_arrays(void)
{
    fill(first_array, sizeof first_array, 1);
    for (size_t i = 0; i < WORDS; i++)
        second_array[i] = 3 * first_array[i];
    VERIFY(first_array, sizeof first_array, 1, "the first array");
    for (size_t i = 0; i < WORDS; i++)
        CHECK(second_array[i] == 3 * word(1, i), "word %zu of the second array", i);
}

#ifdef LIBRARY
void *library_array(size_t *bytes);

static void library_arrays(void)
{
    size_t bytes;
    void *array = library_array(&bytes);
    fill(array, bytes, 2);
    press(64);
    VERIFY(array, bytes, 2, "a library's array");
}
#endif

/* As the memory of an allocator that puts guards around its chunks. */
static void guarded_chunks(void)
{
    enum { CHUNKS = 48 };
    char *chunks[CHUNKS];
    for (int i = 0; i < CHUNKS; i++) {
        chunks[i] = map(4 * MIB + PAGE);
        CHECK(mprotect(chunks[i], PAGE, PROT_NONE) == 0, "mprotect");
        fill(chunks[i] + PAGE, 4 * MIB, i);
        usleep(5000);
    }
    for (int i = 0; i < CHUNKS; i++)
        VERIFY(chunks[i] + PAGE, 4 * MIB, i, "a chunk");
}

static atomic_int finish;

static void *until_told(void *argument)
{
    uint64_t local[512];
    fill(local, sizeof local, (uintptr_t)argument);
    while (!finish)
        usleep(1000);
    VERIFY(local, sizeof local, (uintptr_t)argument, "a thread's stack");
    return argument;
}

static int c11_thread(void *argument)
{
    return until_told(argument) != argument;
}

static void completed(union sigval value)
{
    atomic_store((atomic_int *)value.sival_ptr, 1);
}

/* Threads of all kinds can be joined after their memory was idle under pressure. The kernel writes to a thread's
 * control block when it ends, and does not wait for it if it is swapped out. */
static void threads_end(void)
{
    enum { THREADS = 16 };
    pthread_t threads[THREADS], on_own;
    thrd_t c11[THREADS];
    char *pressure = map(128 * MIB);
    fill(pressure, 128 * MIB, 9);
    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, until_told, (void *)i) == 0, "pthread_create");
        CHECK(thrd_create(&c11[i], c11_thread, (void *)i) == thrd_success, "thrd_create");
    }
    pthread_attr_t attributes;
    char *stack = map(MIB);
    CHECK(pthread_attr_init(&attributes) == 0, "attributes");
    CHECK(pthread_attr_setstack(&attributes, stack, MIB) == 0, "a stack of its own");
    CHECK(pthread_create(&on_own, &attributes, until_told, (void *)77) == 0, "pthread_create");
    /* The C library does this on a thread of its own. */
    char byte;
    static atomic_int is_completed;
    int pipes[2];
    CHECK(pipe(pipes) == 0, "pipe");
    struct aiocb request = {.aio_fildes = pipes[0], .aio_buf = &byte, .aio_nbytes = 1};
    request.aio_sigevent.sigev_notify = SIGEV_THREAD;
    request.aio_sigevent.sigev_notify_function = completed;
    request.aio_sigevent.sigev_value.sival_ptr = &is_completed;
    CHECK(aio_read(&request) == 0, "aio_read");
    for (int i = 0; i < 4; i++)
        press(96);
    finish = 1;
    CHECK(write(pipes[1], "x", 1) == 1, "write");
    for (uintptr_t i = 0; i < THREADS; i++) {
        void *got;
        int result;
        CHECK(pthread_join(threads[i], &got) == 0 && got == (void *)i, "join");
        CHECK(thrd_join(c11[i], &result) == thrd_success && result == 0, "join");
    }
    CHECK(pthread_join(on_own, NULL) == 0, "join");
    while (!is_completed)
        usleep(1000);
    VERIFY(pressure, 128 * MIB, 9, "other memory");
}

/* Executable memory, as of a just-in-time compiler. */
static void executable(void)
{
    size_t size = 160 * MIB;
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    fill(p, size, 5);
    /* mov %edi, %eax; add $N, %eax; ret; at the start of each mebibyte. */
    for (size_t i = 0; i < size / MIB; i++)
        memcpy(p + i * MIB, (unsigned char[]){0x89, 0xf8, 0x83, 0xc0, i % 100, 0xc3}, 6);
    note_absent("absent", p, size);
    for (size_t i = 0; i < size / MIB; i++) {
        int (*add)(int) = (int (*)(int))(void *)(p + i * MIB);
        CHECK(add(1000) == 1000 + (int)(i % 100), "code in mebibyte %zu", i);
        VERIFY_PART(p, i * MIB + 8, MIB - 8, 5, "what is beside the code");
    }
    /* Memory that becomes read-only, and writable again. */
    CHECK(mprotect(p, size / 2, PROT_READ | PROT_EXEC) == 0, "mprotect");
    press(96);
    CHECK(mprotect(p, size / 2, PROT_READ | PROT_WRITE) == 0, "mprotect");
    press(96);
    for (size_t i = 0; i < size / MIB; i++)
        VERIFY_PART(p, i * MIB + 8, MIB - 8, 5, "after the changes");
}

/* Adjacent memory, some of it executable and some not: a run of pages that is evicted or mapped together crosses
 * the borders. */
static void unlike_neighbours(void)
{
    size_t size = 96 * MIB, pages = size / PAGE;
    char *p = map(size);
    for (size_t at = 0, piece = 0; at < pages; at += 1 + piece++ % 23) {
        if (piece % 2 == 0)
            continue;
        size_t n = 1 + piece % 23;
        if (n > pages - at)
            n = pages - at;
        CHECK(mprotect(p + at * PAGE, n * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0, "mprotect");
    }
    fill(p, size, 10);
    for (int round = 0; round < 3; round++) {
        /* Here and there, some pages in a row. */
        for (size_t i = 0; i < pages / 32; i++)
            fill_part(p, i * 1009 % (pages / 32) * 32 * PAGE, (1 + i % 32) * PAGE, 10);
        VERIFY(p, size, 10, "neighbours");
    }
    press(96);
    VERIFY(p, size, 10, "neighbours that were out");
}

/* Memory under pressure that the program registers with a userfaultfd of its own. */
static void own_userfaultfd(void)
{
    size_t size = 16 * MIB;
    char *p = swapped_memory(size, 6, 128);
    int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (fd < 0)
        fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    CHECK(fd >= 0, "userfaultfd");
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP};
    CHECK(ioctl(fd, UFFDIO_API, &api) == 0, "UFFDIO_API");
    struct uffdio_register all = {
        .range = {(uintptr_t)p, size},
        .mode = UFFDIO_REGISTER_MODE_WP | UFFDIO_REGISTER_MODE_MISSING,
    };
    CHECK(ioctl(fd, UFFDIO_REGISTER, &all) == 0, "UFFDIO_REGISTER");
    struct uffdio_writeprotect protect = {.range = all.range, .mode = UFFDIO_WRITEPROTECT_MODE_WP};
    CHECK(ioctl(fd, UFFDIO_WRITEPROTECT, &protect) == 0, "UFFDIO_WRITEPROTECT");
    press(128);
    VERIFY(p, size, 6, "what it serves itself");
    protect.mode = 0;
    CHECK(ioctl(fd, UFFDIO_WRITEPROTECT, &protect) == 0, "UFFDIO_WRITEPROTECT");
    /* A page that the program takes away is its own to bring back. */
    CHECK(madvise(p + PAGE, PAGE, MADV_DONTNEED) == 0, "MADV_DONTNEED");
    char source[2 * PAGE], *page = (char *)(((uintptr_t)source + PAGE - 1) & -PAGE);
    fill(page, PAGE, 7);
    struct uffdio_copy copy = {.dst = (uintptr_t)p + PAGE, .src = (uintptr_t)page, .len = PAGE};
    CHECK(ioctl(fd, UFFDIO_COPY, &copy) == 0, "UFFDIO_COPY");
    CHECK(memcmp(p + PAGE, page, PAGE) == 0, "the page that it brought");
    fill(p, size, 8);
    close(fd);
    press(128);
    VERIFY(p, size, 8, "after its end");
}

/* A mapping with MAP_STACK need not be a stack. */
static void named_a_stack(void)
{
    size_t size = 160 * MIB;
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    fill(p, size, 4);
    note_absent("absent", p, size);
    VERIFY(p, size, 4, "as of a stack");
}

/* Memory that is found when a part of it has been touched stays one mapping: the program may move and resize it as a
 * whole. */
static void moves_as_one(void)
{
    size_t size = 48 * MIB, step = 3 * MIB, touched = MIB / 2;
    for (int round = 0; round < 6; round++) {
        char *p, *space;
        register long flags __asm__("r10") = MAP_PRIVATE | MAP_ANONYMOUS, none __asm__("r8") = -1, at __asm__("r9") = 0;
        __asm__ volatile("syscall" : "=a"(p) : "a"(SYS_mmap), "D"(0), "S"(size), "d"(PROT_READ | PROT_WRITE),
                         "r"(flags), "r"(none), "r"(at) : "rcx", "r11", "memory");
        CHECK((intptr_t)p > 0, "mmap");
        for (size_t i = 0; i < size; i += step)
            fill_part(p, i, touched, round);
        /* From immediately to after it has been found. */
        usleep(round * 60000);
        space = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(space != MAP_FAILED, "reserving");
        CHECK(mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, space) == space, "mremap in round %d", round);
        CHECK((p = mremap(space, size, 2 * size, MREMAP_MAYMOVE)) != MAP_FAILED, "resizing in round %d", round);
        press(64);
        for (size_t i = 0; i < size; i += step) {
            VERIFY_PART(p, i, touched, round, "what was moved");
            VERIFY_ZERO(p + i + touched, step - touched, "the rest");
        }
        CHECK(munmap(p, 2 * size) == 0, "munmap");
    }
}

/* A mapping that foreswap does not notice at once, below one that is managed: bare they are one mapping. Both have been
 * touched by the time it is noticed, and the kernel never joins them then. */
static void moves_with_neighbour(void)
{
    size_t size = 24 * MIB, sizes[] = {2 * size, 3 * size, size + MIB};
    press(96);
    for (int round = 0; round < 12; round++) {
        char *space = mmap(NULL, 3 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *p, *raw;
        CHECK(space != MAP_FAILED, "reserving");
        p = mmap(space + size, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(p == space + size, "mmap");
        fill_part(p, 0, size, round);
        register long flags __asm__("r10") = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, none __asm__("r8") = -1,
                            at __asm__("r9") = 0;
        __asm__ volatile("syscall" : "=a"(raw) : "a"(SYS_mmap), "D"(space), "S"(size), "d"(PROT_READ | PROT_WRITE),
                         "r"(flags), "r"(none), "r"(at) : "rcx", "r11", "memory");
        CHECK(raw == space, "mmap of the neighbour");
        fill_part(raw, 0, size, round + 100);
        size_t now = sizes[round % 3];
        int stays = round >= 9;
        if (stays)
            now = 2 * size;
        char *to = NULL;
        if (round % 2) {
            to = mmap(NULL, now, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(to != MAP_FAILED, "the place");
            fill_part(to, 0, MIB, 7);
        }
        int how = MREMAP_MAYMOVE | (to ? MREMAP_FIXED : 0) | (stays ? MREMAP_DONTUNMAP : 0);
        char *moved = mremap(space, 2 * size, now, how, to);
        CHECK(moved != MAP_FAILED && (!to || moved == to), "mremap in round %d", round);
        if (stays)
            VERIFY_ZERO(space, 2 * size, "the old place");
        else
            CHECK(moved == space || msync(space, PAGE, MS_ASYNC) != 0, "the old place is still mapped");
        press(64);
        VERIFY_PART(moved, 0, size, round + 100, "the neighbour");
        size_t second = now < 2 * size ? now - size : size;
        VERIFY_PART(moved + size, 0, second, round, "the mapping");
        if (now > 2 * size)
            VERIFY_ZERO(moved + 2 * size, now - 2 * size, "what was added");
        CHECK(munmap(moved, now) == 0, "munmap");
        munmap(space, 3 * size);
    }
}

static char state_of(char *at, size_t size, uint64_t seed)
{
    if (msync(at, size, MS_ASYNC) != 0)
        return '-';
    return wrong_words(at, 0, size, seed) == 0 ? 'a' + seed % 26 : '?';
}

/* Moves of memory that is not one mapping without foreswap either: holes, and neighbours of another protection. What the
 * kernel moves, and what it leaves alone, is printed: since Linux 6.17 it moves several mappings to a fixed place. */
static void moves_of_several(void)
{
    size_t third = 4 * MIB, all = 3 * third;
    press(96);
    for (int kind = 0; kind < 5; kind++) {
        for (int fixed = 0; fixed < 2; fixed++) {
            char *from = map(all), *to = map(all);
            for (int i = 0; i < 3; i++) {
                fill_part(from + i * third, 0, third, i);
                fill_part(to + i * third, 0, third, 10 + i);
            }
            press(48);
            if (kind == 0)
                CHECK(munmap(from, all) == 0, "munmap");
            else if (kind < 3)
                CHECK(munmap(from + (kind - 1) * third, third) == 0, "munmap");
            else
                CHECK(mprotect(from + (kind - 3) * 2 * third, third, PROT_READ) == 0, "mprotect");
            char *moved = mremap(from, all, all, MREMAP_MAYMOVE | (fixed ? MREMAP_FIXED : 0), to);
            const char *result = moved == MAP_FAILED ? strerror(errno) : moved == to ? "moved" : "elsewhere";
            printf("kind %d, fixed %d: %s, from ", kind, fixed, result);
            for (int i = 0; i < 3; i++)
                putchar(state_of(from + i * third, third, i));
            printf(", to ");
            for (int i = 0; i < 3; i++) {
                char now = state_of(to + i * third, third, i);
                putchar(now == '?' ? state_of(to + i * third, third, 10 + i) : now);
            }
            putchar('\n');
            munmap(from, all);
            munmap(to, all);
        }
    }
}

/* Small mappings between large ones: the kernel joins all of them, and so it must when some are managed. */
static void small_mappings(void)
{
    static const size_t sizes[] = {64 << 10, PAGE, 20 << 10, 2 * PAGE};
    static char *all[40000];
    enum { N = sizeof all / sizeof *all };
    press(128);
    for (int i = 0; i < N; i++) {
        size_t size = sizes[i % 4];
        all[i] = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(all[i] != MAP_FAILED, "mapping %d", i);
        fill_part(all[i], size - PAGE, PAGE, i);
    }
    /* A page in the middle of others is replaced. */
    for (int i = 0; i < N; i += 4) {
        char *page = all[i] + 8 * PAGE;
        CHECK(mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page, "mmap");
        fill_part(page, 0, PAGE, -i);
    }
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    uint64_t lines = 0;
    while (maps && fgets(line, sizeof line, maps))
        lines++;
    note("mappings", lines);
    press(128);
    for (int i = 0; i < N; i++) {
        VERIFY_PART(all[i], sizes[i % 4] - PAGE, PAGE, i, "a mapping");
        if (i % 4 == 0)
            VERIFY_PART(all[i] + 8 * PAGE, 0, PAGE, -i, "a page in the middle");
    }
}

enum { PIECE = 64 << 10, OWNERS = 3 };

struct owner {
    pthread_t thread;
    char *reserved;
    int pieces;
    uint64_t seed;
};

/* Past the C library and its wrappers. */
static char *past_libc(long number, const void *a, long b, long c, long d, long e)
{
    char *result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static char *map_piece(char *at, int flags)
{
    return past_libc(SYS_mmap, at, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1);
}

/* Maps piece by piece of a reservation past the C library, and touches each at once. One piece in eight is memory that
 * was filled elsewhere and moves there. */
static void *fill_reserved(void *argument)
{
    struct owner *owner = argument;
    for (int i = 0; i < owner->pieces; i++) {
        char *piece = owner->reserved + (size_t)i * PIECE;
        if (i % 8 == 7) {
            char *elsewhere = map_piece(NULL, 0);
            CHECK((intptr_t)elsewhere > 0, "a piece elsewhere");
            fill(elsewhere, PIECE, owner->seed + i);
            sched_yield();
            int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
            char *moved = past_libc(SYS_mremap, elsewhere, PIECE, PIECE, flags, (intptr_t)piece);
            CHECK(moved == piece, "its move");
        } else {
            CHECK(map_piece(piece, MAP_FIXED) == piece, "piece %d", i);
            fill(piece, PIECE, owner->seed + i);
        }
    }
    return NULL;
}

/* As an allocator does that reserves addresses: of sanitizers, of Go. Twice, as the second round replaces memory that
 * is out. */
static void reserve_and_fill(int n, int pieces)
{
    struct owner owners[OWNERS];
    press(128);
    for (int i = 0; i < n; i++) {
        char *at = mmap(NULL, (size_t)pieces * PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(at != MAP_FAILED, "a reservation");
        owners[i] = (struct owner){.reserved = at, .pieces = pieces, .seed = 1000000 * i};
    }
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < n; i++) {
            owners[i].seed += 10000;
            CHECK(pthread_create(&owners[i].thread, NULL, fill_reserved, &owners[i]) == 0, "a thread");
        }
        for (int i = 0; i < n; i++)
            pthread_join(owners[i].thread, NULL);
        for (int i = 0; i < n; i++)
            for (int k = 0; k < pieces; k++)
                VERIFY(owners[i].reserved + (size_t)k * PIECE, PIECE, owners[i].seed + k, "a piece");
    }
}

/* 300 MiB in blocks, each filled when it is allocated. */
static void many_blocks(void)
{
    enum { BLOCKS = 75000, SIZE = 4000 };
    static char *blocks[BLOCKS];
    press(100);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(SIZE);
        fill(blocks[i], SIZE, i);
    }
    for (int i = 0; i < BLOCKS; i++)
        VERIFY(blocks[i], SIZE, i, "a block");
}

static void reserved_by_threads(void) { reserve_and_fill(OWNERS, 1600); }

int main(int argc, char **argv)
{
    const struct part parts[] = {
        {"static_arrays", static_arrays},
#ifdef LIBRARY
        {"library_arrays", library_arrays},
#endif
        {"guarded_chunks", guarded_chunks},
        {"threads_end", threads_end},
        {"executable", executable},
        {"unlike_neighbours", unlike_neighbours},
        {"own_userfaultfd", own_userfaultfd},
        {"moves_as_one", moves_as_one},
        {"moves_with_neighbour", moves_with_neighbour},
        {"moves_of_several", moves_of_several},
        {"named_a_stack", named_a_stack},
        {"small_mappings", small_mappings},
        {"many_blocks", many_blocks},
        {"reserved_by_threads", reserved_by_threads},
    };
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
