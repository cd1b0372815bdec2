/* Many children at a time, and children whose parent ends at once. */
#include "forks.h"

#include <sys/prctl.h>
#include <time.h>

/* Many children that live at the same time: each looks at some of the memory that is out, before and after the last of
 * them has been forked, and writes some. */
static void many_children_alive(void)
{
    enum { CHILDREN = 400, LOOK = 16 * PAGE };
    char *p = swapped_region(26);
    static pid_t pids[CHILDREN];
    int ready[2], go[2];
    CHECK(pipe(ready) == 0 && pipe(go) == 0, "pipe");
    for (int i = 0; i < CHILDREN; i++) {
        pids[i] = forked();
        if (pids[i] == 0) {
            close(go[1]);
            size_t at = i * LOOK * 2 % (REGION - 2 * LOOK);
            VERIFY_PART(p, at, LOOK, 26, "inherited");
            fill_part(p, at, PAGE, 2600 + i);
            char byte = 'r';
            CHECK(write(ready[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 0, "waiting");
            VERIFY_PART(p, at, PAGE, 2600 + i, "written in the child");
            VERIFY_PART(p, at + PAGE, 2 * LOOK - PAGE, 26, "beside its siblings");
            _exit(0);
        }
    }
    /* A child that ends reports nothing. */
    alarm(100);
    for (int i = 0; i < CHILDREN; i++) {
        char byte;
        CHECK(read(ready[0], &byte, 1) == 1, "a child does not come up");
    }
    press(PRESSURE);
    close(go[1]);
    for (int i = 0; i < CHILDREN; i++)
        child_was_right(pids[i], "a child");
    VERIFY(p, REGION, 26, "in the end");
}

/* More children than there is room for: fork fails, nobody's memory is lost, and it works again when some have ended. */
static void children_beyond_the_bound(void)
{
    enum { CHILDREN = 400 };
    char *p = swapped_region(27);
    static pid_t pids[CHILDREN];
    int go[2], born = 0;
    CHECK(pipe(go) == 0, "pipe");
    fflush(stdout);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t pid = i % 2 ? fork() : syscall(SYS_fork);
        if (pid == 0) {
            char byte;
            close(go[1]);
            int end = read(go[0], &byte, 1);
            _exit(end != 0 || wrong_words(p, i * 16 * PAGE % REGION, 16 * PAGE, 27));
        }
        CHECK(pid > 0 || (pid == -1 && errno == EAGAIN), "fork");
        if (pid > 0)
            pids[born++] = pid;
    }
    note("born", born);
    VERIFY(p, REGION, 27, "after forks that failed");
    close(go[1]);
    for (int i = 0; i < born; i++)
        child_was_right(pids[i], "a child");
    int status;
    CHECK(wait(&status) == -1 && errno == ECHILD, "no child is left of a fork that failed");
    pid_t pid = forked();
    if (pid == 0) {
        VERIFY(p, REGION, 27, "in a later child");
        _exit(0);
    }
    child_was_right(pid, "a later child");
}

static uint64_t milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ULL + now.tv_nsec / 1000000;
}

static void only_on_the_first_cpu(int priority)
{
    cpu_set_t first;
    CPU_ZERO(&first);
    CPU_SET(0, &first);
    CHECK(sched_setaffinity(0, sizeof first, &first) == 0, "affinity");
    struct sched_param parameter = {.sched_priority = priority};
    CHECK(sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &parameter) == 0, "priority");
}

/* A process whose memory fits forks and ends at once. The child gets no CPU before its parent has gone, and then needs
 * far more memory than there is. argv[2] takes its verdict. */
static const char *verdict_file;
static void live_as_a_daemon(char *p)
{
    setsid();
    close_range(0, ~0U, 0);
    char *more = map(160 * MIB);
    fill(more, 160 * MIB, 29);
    size_t present = present_pages(more, 160 * MIB) + present_pages(p, 16 * MIB);
    size_t wrong = wrong_words(p, 0, 16 * MIB, 28) + wrong_words(more, 0, 160 * MIB, 29);
    char text[64];
    int length = snprintf(text, sizeof text, "%zu words wrong, %zu MiB held\n", wrong, present * PAGE / MIB);
    int fd = open(verdict_file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    _exit(write(fd, text, length) == length ? 0 : 1);
}

static void leaves_a_late_daemon(void)
{
    volatile int *go = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(go != MAP_FAILED, "shared memory");
    pid_t hog = forked();
    if (hog == 0) {
        while (!*go)
            usleep(100);
        only_on_the_first_cpu(1);
        for (uint64_t began = milliseconds(); milliseconds() - began < 400;)
            ;
        _exit(0);
    }
    char *p = map(16 * MIB);
    fill(p, 16 * MIB, 28);
    usleep(20000);
    only_on_the_first_cpu(2);
    *go = 1;
    usleep(1000);
    pid_t pid = forked();
    if (pid != 0)
        return;
    live_as_a_daemon(p);
}

/* The same started by a shell that ends at once. */
static void is_a_daemon(void)
{
    char *p = map(16 * MIB);
    fill(p, 16 * MIB, 28);
    live_as_a_daemon(p);
}

static const struct part parts[] = {
    {"many_children_alive", many_children_alive},
    {"children_beyond_the_bound", children_beyond_the_bound},
    {"leaves_a_late_daemon", leaves_a_late_daemon},
    {"is_a_daemon", is_a_daemon},
};

int main(int argc, char **argv)
{
    verdict_file = argc > 2 ? argv[2] : "/dev/null";
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
