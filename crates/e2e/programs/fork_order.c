/* Code that runs around a fork: handlers of libraries, the C library's reset of its streams, early signals, and
 * other processes that need memory at that moment. Built as a library too (AS_LIBRARY), whose constructor
 * registers a handler. */
#include "check.h"

#define REGION (48 * MIB)
#define PRESSURE 128

#ifdef AS_LIBRARY
/* The library's own memory, which its handlers need in the child. */
static char *region;
static int looked;

void library_begins(void)
{
    region = map(REGION);
    fill(region, REGION, 1);
}

static void in_child(void)
{
    if (region != NULL) {
        VERIFY(region, REGION, 1, "in a library's handler in the child");
        looked = 1;
    }
}

int library_looked(void) { return looked; }

__attribute__((constructor)) static void construct(void)
{
    CHECK(pthread_atfork(NULL, NULL, in_child) == 0, "pthread_atfork");
}
#else
/* Twice as much, and a quarter more, is below the limit; it is more than a fifth of it. */
#define BARE (14 * MIB)

#include <dlfcn.h>
#include <sys/ptrace.h>
#include <sys/user.h>

__attribute__((weak)) void library_begins(void);
__attribute__((weak)) int library_looked(void);

static void library_handlers(void)
{
    CHECK(library_begins != NULL, "the library is not there");
    library_begins();
    char *p = swapped_memory(REGION, 2, PRESSURE);
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        VERIFY(p, REGION, 2, "the child's");
        _exit(library_looked() ? 7 : 8);
    }
    CHECK(reap(pid) == 7, "the child");
}

static void *sleep_for_ever(void *unused)
{
    (void)unused;
    for (;;)
        pause();
    return NULL;
}

/* Threads that are created past all wrappers, as jemalloc creates its own. The C library's fork in the child goes
 * through the control blocks on their stacks, and the kernel writes there when they end. */
static void *wait_for_pipe(void *end)
{
    char byte;
    return (void *)(intptr_t)read((int)(intptr_t)end, &byte, 1);
}

static void threads_of_allocators(void)
{
    int (*make)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    CHECK(libc, "dlopen");
    *(void **)&make = dlsym(libc, "pthread_create");
    CHECK(make, "pthread_create");
    int ends[2];
    pthread_t threads[4];
    CHECK(pipe(ends) == 0, "pipe");
    for (int i = 0; i < 4; i++)
        CHECK(make(&threads[i], NULL, wait_for_pipe, (void *)(intptr_t)ends[0]) == 0, "a thread");
    char *p = swapped_memory(REGION, 7, PRESSURE);
    fflush(stdout);
    for (int round = 0; round < 3; round++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            VERIFY(p, REGION, 7, "the child's");
            _exit(7);
        }
        CHECK(reap(pid) == 7, "the child of round %d", round);
        press(PRESSURE);
    }
    CHECK(write(ends[1], "1234", 4) == 4, "write");
    for (int i = 0; i < 4; i++) {
        void *result;
        CHECK(pthread_join(threads[i], &result) == 0 && result == (void *)1, "the end of a thread");
    }
    VERIFY(p, REGION, 7, "the parent's");
}

/* The C library's fork resets the locks of all streams in the child of a program with threads. */
static void streams(void)
{
    enum { COUNT = 900 };
    static FILE *files[COUNT];
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, sleep_for_ever, NULL) == 0, "pthread_create");
    for (int i = 0; i < COUNT; i++) {
        files[i] = fopen("/dev/null", "w");
        CHECK(files[i], "fopen");
        /* Apart from each other, so that pages of other uses lie between. */
        CHECK(malloc(20000), "malloc");
    }
    for (int round = 0; round < 5; round++) {
        char *p = swapped_memory(REGION, 3, PRESSURE);
        fflush(stdout);
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            for (int i = 0; i < COUNT; i++)
                CHECK(fprintf(files[i], "round %d\n", round) > 0 && fflush(files[i]) == 0, "stream %d", i);
            VERIFY(p, REGION, 3, "the child's");
            _exit(7);
        }
        CHECK(reap(pid) == 7, "the child of round %d", round);
        CHECK(munmap(p, REGION) == 0, "munmap");
    }
}

static char *signalled;
static volatile sig_atomic_t handled;

static void on_signal(int number)
{
    (void)number;
    /* The middle, which has not been touched before. */
    handled = wrong_words(signalled, REGION / 2, MIB, 4) == 0 ? 1 : -1;
}

/* A signal that reaches the child before its memory has. */
static void early_signals(void)
{
    signalled = swapped_memory(REGION, 4, PRESSURE);
    CHECK(signal(SIGUSR1, on_signal) != SIG_ERR, "signal");
    for (int round = 0; round < 20; round++) {
        fflush(stdout);
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            for (int i = 0; i < 5000 && handled == 0; i++)
                usleep(1000);
            _exit(handled == 1 ? 7 : handled == 0 ? 8 : 9);
        }
        CHECK(kill(pid, SIGUSR1) == 0, "kill");
        int status = reap(pid);
        CHECK(status == 7, "round %d: %d (8: no signal came, 9: wrong words)", round, status);
    }
    sigset_t mask;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &mask) == 0 && !sigismember(&mask, SIGUSR1), "a signal is blocked in the parent");
}

/* Forks by many threads at a time, each with a mask of its own. */
static char *forked_region;

static void *fork_often(void *number)
{
    sigset_t mask, now;
    sigemptyset(&mask);
    sigaddset(&mask, SIGRTMIN + (int)(intptr_t)number);
    CHECK(pthread_sigmask(SIG_SETMASK, &mask, NULL) == 0, "mask");
    for (int round = 0; round < 6; round++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        size_t at = ((size_t)(intptr_t)number * 6 + round) * MIB % REGION;
        if (pid == 0) {
            VERIFY_PART(forked_region, at, MIB, 5, "a thread's child");
            pthread_sigmask(SIG_SETMASK, NULL, &now);
            for (int i = 0; i < 8; i++)
                if (sigismember(&now, SIGRTMIN + i) != (i == (int)(intptr_t)number))
                    _exit(8);
            _exit(7);
        }
        CHECK(reap(pid) == 7, "the child");
        pthread_sigmask(SIG_SETMASK, NULL, &now);
        CHECK(sigismember(&now, SIGRTMIN + (int)(intptr_t)number) == 1 && !sigismember(&now, SIGUSR1), "the mask");
    }
    return NULL;
}

static void forks_of_threads(void)
{
    forked_region = swapped_memory(REGION, 5, PRESSURE);
    fflush(stdout);
    pthread_t threads[8];
    for (intptr_t i = 0; i < 8; i++)
        CHECK(pthread_create(&threads[i], NULL, fork_often, (void *)i) == 0, "pthread_create");
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    VERIFY(forked_region, REGION, 5, "the parent's");
}

/* A process all of whose memory fits forks. Between the engine's answer and the fork itself, other processes need
 * memory. Its parent stops the process there by tracing it, and then fills the memory. */
static void pressure_while_a_bare_fork_is_held(void)
{
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        char *p = map(BARE);
        fill(p, BARE, 6);
        CHECK(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0, "PTRACE_TRACEME");
        raise(SIGSTOP);
        pid_t grandchild = fork();
        CHECK(grandchild >= 0, "fork");
        if (grandchild == 0) {
            VERIFY(p, BARE, 6, "the child of a held fork");
            _exit(7);
        }
        CHECK(reap(grandchild) == 7, "the grandchild");
        VERIFY(p, BARE, 6, "the one that forked");
        _exit(7);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status), "it stops");
    CHECK(ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD) == 0, "options");
    struct user_regs_struct registers;
    do {
        CHECK(ptrace(PTRACE_SYSCALL, pid, 0, 0) == 0, "PTRACE_SYSCALL");
        CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status), "it goes on");
        CHECK(ptrace(PTRACE_GETREGS, pid, 0, &registers) == 0, "registers");
    } while (registers.orig_rax != SYS_clone);
    /* At the entry of the system call. The rest of the limit and more. */
    pid_t others[5];
    for (int n = 0; n < 5; n++) {
        others[n] = fork();
        CHECK(others[n] >= 0, "fork");
        if (others[n] == 0) {
            press(PRESSURE);
            press(PRESSURE);
            _exit(7);
        }
    }
    press(PRESSURE);
    for (int n = 0; n < 5; n++)
        CHECK(reap(others[n]) == 7, "another process");
    CHECK(ptrace(PTRACE_DETACH, pid, 0, 0) == 0, "PTRACE_DETACH");
    CHECK(reap(pid) == 7, "the process whose fork was held");
    note("absent", 2048);
}

int main(int argc, char **argv)
{
    static const struct part parts[] = {
        {"library_handlers", library_handlers},
        {"streams", streams},
        {"threads_of_allocators", threads_of_allocators},
        {"early_signals", early_signals},
        {"forks_of_threads", forks_of_threads},
        {"pressure_while_a_bare_fork_is_held", pressure_while_a_bare_fork_is_held},
    };
    return run_part(parts, sizeof parts / sizeof parts[0], argc, argv);
}
#endif
