/* fork and calls built on it, with most of the memory swapped out: the child sees the parent's memory as of the
 * fork, both continue to write, either ends first. The parent gets each child's verdict by its exit status. */
#include "forks.h"

#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>

extern char **environ;
static char *self;

/* Parent and child write their own values in turns with pressure. */
static void diverge(char *p, uint64_t before, uint64_t mine)
{
    VERIFY(p, REGION, before, "as of the fork");
    for (int round = 0; round < 3; round++) {
        fill_part(p, 0, REGION / 2, mine + round);
        press(PRESSURE);
        VERIFY_PART(p, 0, REGION / 2, mine + round, "what I wrote");
        VERIFY_PART(p, REGION / 2, REGION / 2, before, "what nobody wrote");
    }
}

static void child_sees_parent(void)
{
    char *p = swapped_region(1);
    pid_t pid = forked();
    if (pid == 0) {
        diverge(p, 1, 100);
        _exit(0);
    }
    diverge(p, 1, 200);
    child_was_right(pid, "the child");
    VERIFY_PART(p, 0, REGION / 2, 202, "after the child");
}

static void parent_exits_first(void)
{
    char *p = swapped_region(2);
    int done[2];
    CHECK(pipe(done) == 0, "pipe");
    pid_t parent = forked();
    if (parent == 0) {
        pid_t between = getpid();
        pid_t child = forked();
        if (child == 0) {
            while (getppid() == between)
                usleep(1000);
            usleep(50000);
            diverge(p, 2, 300);
            CHECK(write(done[1], "k", 1) == 1, "telling");
            _exit(0);
        }
        _exit(0);
    }
    child_was_right(parent, "the one between");
    close(done[1]);
    char verdict = 0;
    CHECK(read(done[0], &verdict, 1) == 1 && verdict == 'k', "the orphan did not finish");
    VERIFY(p, REGION, 2, "the first process");
}

static void child_exits_first(void)
{
    char *p = swapped_region(4);
    for (int i = 0; i < 4; i++) {
        pid_t pid = forked();
        if (pid == 0) {
            VERIFY_PART(p, i * PAGE * 100, PAGE * 100, 4, "a little of it");
            _exit(0);
        }
        child_was_right(pid, "a child");
        VERIFY(p, REGION, 4, "after a child");
        press(PRESSURE);
    }
    diverge(p, 4, 400);
}

static void generations(char *p, uint64_t seed, int left)
{
    VERIFY(p, REGION, seed, "inherited");
    fill(p, REGION, seed + 1);
    press(PRESSURE / 2);
    if (left > 0) {
        pid_t pid = forked();
        if (pid == 0) {
            generations(p, seed + 1, left - 1);
            _exit(0);
        }
        fill_part(p, 0, REGION / 4, 77);
        child_was_right(pid, "a descendant");
        VERIFY_PART(p, 0, REGION / 4, 77, "written beside the descendant");
        VERIFY_PART(p, REGION / 4, REGION - REGION / 4, seed + 1, "after the descendant");
    } else {
        VERIFY(p, REGION, seed + 1, "the last one");
    }
}

static void grandchildren(void)
{
    char *p = swapped_region(500);
    generations(p, 500, 3);
}

static volatile int stop;

static void *busy(void *which)
{
    uint64_t n = (uintptr_t)which * 1000;
    size_t size = 8 * MIB;
    char *own = map(size);
    while (!stop) {
        n++;
        fill(own, size, n);
        VERIFY(own, size, n, "a busy thread's memory");
        CHECK(madvise(own, size / 2, MADV_DONTNEED) == 0, "MADV_DONTNEED");
        VERIFY_ZERO(own, size / 2, "discarded");
        VERIFY_PART(own, size / 2, size / 2, n, "kept");
        char *more = malloc(3 * MIB);
        CHECK(more, "malloc");
        fill(more, 3 * MIB, n);
        VERIFY(more, 3 * MIB, n, "a busy thread's block");
        free(more);
        char *other = map(size);
        fill(other, size, n + 1);
        munmap(own, size);
        own = other;
    }
    return NULL;
}

static void fork_while_threads_work(void)
{
    char *p = swapped_region(6);
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, busy, (void *)(i + 1)) == 0, "a thread");
    for (int i = 0; i < 10; i++) {
        pid_t pid = forked();
        if (pid == 0) {
            VERIFY(p, REGION, 6, "in the child");
            fill_part(p, 0, 4 * MIB, 600 + i);
            VERIFY_PART(p, 0, 4 * MIB, 600 + i, "written in the child");
            _exit(0);
        }
        if (i % 2)
            VERIFY(p, REGION, 6, "beside the child");
        child_was_right(pid, "a child");
    }
    stop = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    VERIFY(p, REGION, 6, "in the end");
}

static void fork_and_exec(void)
{
    char *p = swapped_region(7);
    for (int i = 0; i < 3; i++) {
        pid_t pid = forked();
        if (pid == 0) {
            execl(self, self, "exec_target", (char *)NULL);
            _exit(97);
        }
        child_was_right(pid, "the executed program");
    }
    VERIFY(p, REGION, 7, "in the end");
}

/* The program that fork_and_exec and exec_self execute: it swaps on its own. */
static void exec_target(void)
{
    char *p = swapped_region(8);
    VERIFY(p, REGION, 8, "in the executed program");
}

static void exec_self(void)
{
    char *p = swapped_region(9);
    VERIFY_PART(p, 0, REGION / 2, 9, "before exec");
    fflush(stdout);
    execl(self, self, "exec_target", (char *)NULL);
    CHECK(0, "exec");
}

/* The argument strings themselves are swapped out when the kernel reads them. */
static char *swapped_string(const char *text)
{
    char *at = map(16 * MIB);
    fill(at, 16 * MIB, 10);
    strcpy(at + 4 * MIB + 13, text);
    press(PRESSURE);
    return at + 4 * MIB + 13;
}

static void vfork_and_spawn(void)
{
    char *p = swapped_region(11);
    char *script = swapped_string("exit 7");
    char *shell = swapped_string("/bin/sh");
    char *arguments[] = {"sh", "-c", script, NULL};
    pid_t pid = vfork();
    if (pid == 0) {
        execv(shell, arguments);
        _exit(97);
    }
    CHECK(reap(pid) == 7, "vfork and exec");
    CHECK(posix_spawn(&pid, shell, NULL, NULL, arguments, environ) == 0, "posix_spawn");
    CHECK(reap(pid) == 7, "the spawned shell");
    press(PRESSURE);
    int status = system(script);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7, "system");
    press(PRESSURE);
    FILE *pipe = popen(swapped_string("echo from a pipe"), "re");
    CHECK(pipe, "popen");
    char line[64] = "";
    CHECK(fgets(line, sizeof line, pipe) && strcmp(line, "from a pipe\n") == 0, "popen said %s", line);
    CHECK(pclose(pipe) == 0, "pclose");
    /* A child of vfork shares our memory and may fault on it. */
    pid = vfork();
    if (pid == 0) {
        size_t wrong = wrong_words(p, 0, REGION, 11);
        _exit(wrong ? 96 : 0);
    }
    child_was_right(pid, "a vfork child that reads");
    VERIFY(p, REGION, 11, "in the end");
}

/* Slots that forks share must be freed: run with little swap. */
static void many_forks(void)
{
    char *p = swapped_region(12);
    for (int i = 0; i < 40; i++) {
        pid_t pid = forked();
        if (pid == 0) {
            fill_part(p, 0, 12 * MIB, 1200 + i);
            VERIFY_PART(p, 0, 12 * MIB, 1200 + i, "written in the child");
            VERIFY_PART(p, REGION - 4 * MIB, 4 * MIB, 12, "inherited");
            _exit(0);
        }
        child_was_right(pid, "a child");
        if (i % 8 == 0) {
            fill(p, REGION, 12);
            press(PRESSURE / 2);
        }
    }
    VERIFY(p, REGION, 12, "in the end");
}

static pid_t by_raw_fork(void) { return syscall(SYS_fork); }
static pid_t by_raw_clone(void) { return syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL); }
static pid_t by_plain_fork(void) { return _Fork(); }
static pid_t by_raw_clone3(void)
{
    uint64_t arguments[11] = {0};
    arguments[4] = SIGCHLD;
    return syscall(SYS_clone3, arguments, sizeof arguments);
}

static void raw_forks(void)
{
    char *p = swapped_region(13);
    pid_t (*ways[])(void) = {by_raw_fork, by_raw_clone, by_plain_fork, by_raw_clone3};
    const char *names[] = {"syscall(SYS_fork)", "syscall(SYS_clone)", "_Fork", "syscall(SYS_clone3)"};
    for (int i = 0; i < 4; i++) {
        fflush(stdout);
        pid_t pid = ways[i]();
        CHECK(pid >= 0, "%s", names[i]);
        if (pid == 0) {
            if (wrong_words(p, 0, REGION, 13))
                _exit(95);
            fill_part(p, 0, REGION / 2, 1300 + i);
            /* libc may be in an inconsistent state here: only plain memory is touched. */
            _exit(wrong_words(p, 0, REGION / 2, 1300 + i) ? 94 : 0);
        }
        child_was_right(pid, names[i]);
        press(PRESSURE);
        VERIFY(p, REGION, 13, names[i]);
    }
}

/* Several processes that together need far more than the limit. */
static void siblings_share_the_limit(void)
{
    pid_t pids[3];
    char *p = swapped_region(14);
    for (int i = 0; i < 3; i++) {
        pids[i] = forked();
        if (pids[i] == 0) {
            char *own = map(REGION);
            for (int round = 0; round < 3; round++) {
                fill(own, REGION, 1400 + i * 10 + round);
                VERIFY(p, REGION, 14, "inherited");
                VERIFY(own, REGION, 1400 + i * 10 + round, "my own");
            }
            _exit(0);
        }
    }
    for (int i = 0; i < 3; i++)
        child_was_right(pids[i], "a sibling");
    VERIFY(p, REGION, 14, "in the end");
}

static void killed_child(void)
{
    char *p = swapped_region(15);
    for (int i = 0; i < 6; i++) {
        pid_t pid = forked();
        if (pid == 0) {
            for (uint64_t round = 0;; round++)
                fill(p, REGION, 1500 + round);
        }
        usleep(20000 + 30000 * i);
        CHECK(kill(pid, SIGKILL) == 0, "kill");
        CHECK(reap(pid) == 128 + SIGKILL, "the killed child");
        VERIFY(p, REGION, 15, "after a killed child");
        press(PRESSURE / 2);
    }
    diverge(p, 15, 1600);
}

/* The duration of a fork depends on the machine. The process in between reports when it has its child, and is
 * killed while it writes. The orphan becomes a child of the first process, which sees its exit status. */
static void killed_parent(void)
{
    char *p = swapped_region(16);
    int forks[2];
    CHECK(pipe(forks) == 0, "pipe");
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "PR_SET_CHILD_SUBREAPER");
    pid_t between = forked();
    if (between == 0) {
        pid_t me = getpid();
        pid_t child = forked();
        if (child == 0) {
            while (getppid() == me)
                usleep(1000);
            diverge(p, 16, 1700);
            _exit(0);
        }
        CHECK(write(forks[1], &child, sizeof child) == sizeof child, "telling");
        for (uint64_t round = 0;; round++)
            fill(p, REGION, 1800 + round);
    }
    close(forks[1]);
    pid_t orphan = 0;
    CHECK(read(forks[0], &orphan, sizeof orphan) == sizeof orphan, "no child of the one between");
    usleep(100000);
    CHECK(kill(between, SIGKILL) == 0, "kill");
    CHECK(reap(between) == 128 + SIGKILL, "the killed one");
    child_was_right(orphan, "the orphan");
    VERIFY(p, REGION, 16, "the first process");
}

/* As a daemon: fork, its own session, every descriptor closed. */
static void closes_everything(void)
{
    char *p = swapped_region(17);
    /* The verdict travels through shared memory: no descriptor survives. */
    volatile int *verdict = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int way = 0; way < 2; way++) {
        *verdict = 0;
        pid_t pid = forked();
        if (pid == 0) {
            setsid();
            if (way == 0)
                close_range(3, ~0U, 0);
            else
                closefrom(0);
            size_t wrong = wrong_words(p, 0, REGION, 17);
            for (int round = 0; round < 3; round++) {
                fill(p, REGION, 1900 + round);
                press(PRESSURE);
                wrong += wrong_words(p, 0, REGION, 1900 + round);
            }
            *verdict = wrong ? 2 : 1;
            _exit(0);
        }
        child_was_right(pid, "the daemon");
        CHECK(*verdict == 1, "the daemon's memory");
    }
    /* And the process itself, with its swapped memory. */
    int out = dup(1);
    CHECK(out >= 0, "dup");
    close_range(3, out - 1, 0);
    close_range(out + 1, ~0U, 0);
    diverge(p, 17, 2000);
    close(out);
}

/* The parent's advice about a region holds in the child: wiped, or not there. */
static void advice_for_children(void)
{
    char *p = swapped_region(18);
    char *wiped = map(16 * MIB), *kept_away = map(16 * MIB);
    fill(wiped, 16 * MIB, 19);
    fill(kept_away, 16 * MIB, 20);
    CHECK(madvise(wiped, 16 * MIB, MADV_WIPEONFORK) == 0, "MADV_WIPEONFORK");
    CHECK(madvise(kept_away, 16 * MIB, MADV_DONTFORK) == 0, "MADV_DONTFORK");
    press(PRESSURE);
    pid_t pid = forked();
    if (pid == 0) {
        VERIFY_ZERO(wiped, 16 * MIB, "wiped in the child");
        CHECK(msync(kept_away, PAGE, MS_ASYNC) < 0 && errno == ENOMEM, "kept away from the child");
        VERIFY(p, REGION, 18, "the rest in the child");
        fill(wiped, 16 * MIB, 21);
        press(PRESSURE);
        VERIFY(wiped, 16 * MIB, 21, "written after it was wiped");
        _exit(0);
    }
    child_was_right(pid, "the child");
    VERIFY(wiped, 16 * MIB, 19, "wiped in the child only");
    VERIFY(kept_away, 16 * MIB, 20, "kept away from the child");
}

static void shared_stays_shared(void)
{
    uint64_t *shared = mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED, "shared memory");
    char *p = swapped_region(22);
    pid_t pid = forked();
    if (pid == 0) {
        fill(shared, 16 * MIB, 23);
        VERIFY(p, REGION, 22, "in the child");
        _exit(0);
    }
    child_was_right(pid, "the child");
    VERIFY(shared, 16 * MIB, 23, "what the child wrote");
    VERIFY(p, REGION, 22, "private memory");
}

static void *forking_thread(void *p)
{
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        diverge(p, 24, 2400);
        _exit(0);
    }
    child_was_right(pid, "the thread's child");
    return NULL;
}

static void fork_in_threads(void)
{
    char *p = swapped_region(24);
    pthread_t threads[3];
    fflush(stdout);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, forking_thread, p) == 0, "a thread");
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    VERIFY(p, REGION, 24, "in the end");
}

/* Ends at once and leaves a child behind that continues: argv[2] takes its verdict. */
static const char *verdict_file;
static void leaves_a_daemon(void)
{
    char *p = swapped_region(25);
    pid_t pid = forked();
    if (pid == 0) {
        setsid();
        close_range(0, ~0U, 0);
        usleep(200000);
        size_t wrong = wrong_words(p, 0, REGION, 25);
        for (int round = 0; round < 3; round++) {
            fill(p, REGION, 2500 + round);
            press(PRESSURE);
            wrong += wrong_words(p, 0, REGION, 2500 + round);
        }
        int fd = open(verdict_file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        ssize_t written = write(fd, wrong ? "wrong\n" : "right\n", 6);
        _exit(written == 6 ? 0 : 1);
    }
}

/* Forks that fail, more of them than the test leaves room for processes: no record may stay reserved for a child that
 * does not exist. */
static void failed_forks(void)
{
    char *p = swapped_region(19);
    for (int i = 0; i < 300; i++) {
        long pid = syscall(SYS_clone, CLONE_SIGHAND | SIGCHLD, 0, 0, 0, 0);
        CHECK(pid == -1 && errno == EINVAL, "a clone with flags that contradict each other");
    }
    pid_t pid = forked();
    if (pid == 0) {
        diverge(p, 19, 1900);
        _exit(0);
    }
    child_was_right(pid, "the child");
    VERIFY(p, REGION, 19, "in the end");
}

static void *forks_on_and_on(void *unused)
{
    (void)unused;
    for (;;) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(0);
        if (pid > 0)
            waitpid(pid, NULL, 0);
    }
    return NULL;
}

/* Processes that end while another thread forks. */
static void ends_while_forking(void)
{
    char *p = swapped_region(90);
    for (unsigned i = 0; i < 60; i++) {
        pid_t pid = forked();
        if (pid == 0) {
            VERIFY_PART(p, i % 40 * MIB, MIB, 90, "a child");
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, forks_on_and_on, NULL) == 0, "thread");
            usleep(5000 + mix(i) % 5000);
            kill(getpid(), i % 2 ? SIGKILL : SIGTERM);
            pause();
        }
        CHECK(waitpid(pid, NULL, 0) == pid, "waitpid");
    }
    VERIFY(p, REGION, 90, "the parent");
}

static const struct part parts[] = {
    {"ends_while_forking", ends_while_forking},
    {"failed_forks", failed_forks},
    {"child_sees_parent", child_sees_parent},
    {"parent_exits_first", parent_exits_first},
    {"child_exits_first", child_exits_first},
    {"grandchildren", grandchildren},
    {"fork_while_threads_work", fork_while_threads_work},
    {"fork_and_exec", fork_and_exec},
    {"exec_target", exec_target},
    {"exec_self", exec_self},
    {"vfork_and_spawn", vfork_and_spawn},
    {"many_forks", many_forks},
    {"raw_forks", raw_forks},
    {"siblings_share_the_limit", siblings_share_the_limit},
    {"killed_child", killed_child},
    {"killed_parent", killed_parent},
    {"closes_everything", closes_everything},
    {"advice_for_children", advice_for_children},
    {"shared_stays_shared", shared_stays_shared},
    {"fork_in_threads", fork_in_threads},
    {"leaves_a_daemon", leaves_a_daemon},
};

int main(int argc, char **argv)
{
    self = argv[0];
    verdict_file = argc > 2 ? argv[2] : "/dev/null";
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
