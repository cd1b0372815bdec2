/* Memory that comes in ways which no wrapper of foreswap's sees, or that looks like something else:
 * it is managed all the same, so that the process' own peak stays near the limit. */
#include "check.h"

#include <aio.h>
#include <stdatomic.h>
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

/* As the memory of an allocator that guards its chunks. */
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

/* Threads of all makes can be joined after their memory was idle under pressure: the kernel writes to
 * a thread's control block when it ends, and does not wait for it if it is out. */
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

int main(int argc, char **argv)
{
    const struct part parts[] = {
        {"static_arrays", static_arrays},
#ifdef LIBRARY
        {"library_arrays", library_arrays},
#endif
        {"guarded_chunks", guarded_chunks},
        {"threads_end", threads_end},
    };
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
