/* Operations on all threads of a process, or on all processes that wait for children: they must not affect the
 * engine, which is a process of its own, and it continues to serve. */
#include "check.h"
#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#define SIZE (192 * MIB)

/* Only the calls that are needed from here on: no ioctl, no read, no poll, no io_uring. */
static const int ALLOWED[] = {SYS_write, SYS_exit_group, SYS_newfstatat, SYS_fstat, SYS_madvise,
                              SYS_munmap, SYS_getpid, SYS_gettid, SYS_sched_yield};

/* For all threads of the process, which only works if none has a filter of its own. */
static void filter(uint32_t refusal)
{
    struct sock_filter code[64];
    size_t n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < sizeof ALLOWED / sizeof *ALLOWED; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ALLOWED[i], 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, refusal);
    struct sock_fprog program = {.len = n, .filter = code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0, "a filter");
}

static size_t entries(const char *path)
{
    DIR *folder = opendir(path);
    CHECK(folder != NULL, "%s", path);
    size_t count = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static char *shared;
static int told[2];

/* Has its parent's memory, which it reads once the parent has ended. */
static int heir(void *parent)
{
    while (getppid() == *(pid_t *)parent)
        sched_yield();
    VERIFY(shared, SIZE, 1, "the heir");
    write(told[1], "h", 1);
    _exit(0);
}

/* A process ends while another one shares its memory. */
static void inherits(char *memory)
{
    shared = memory;
    CHECK(pipe(told) == 0, "a pipe");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        static char stack[64 << 10] __attribute__((aligned(16)));
        static pid_t self;
        self = getpid();
        VERIFY(memory, SIZE, 1, "the child");
        CHECK(clone(heir, stack + sizeof stack, CLONE_VM | SIGCHLD, &self) > 0, "clone");
        _exit(0);
    }
    CHECK(waitpid(child, NULL, 0) == child, "the child's end");
    close(told[1]);
    struct pollfd end = {.fd = told[0], .events = POLLIN};
    char byte = 0;
    CHECK(poll(&end, 1, 60000) == 1 && read(told[0], &byte, 1) == 1 && byte == 'h', "nothing of the heir");
}

/* Threads, descriptors and children are the program's own. */
static void counts(void)
{
    printf("%zu threads, %zu descriptors\n", entries("/proc/self/task"), entries("/proc/self/fd"));
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD, "a child that we do not know");
    CHECK(waitpid(-1, NULL, WNOHANG | __WALL) == -1 && errno == ECHILD, "a child of another kind");
    char path[64], children[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && read(fd, children, sizeof children) == 0, "children: %s", children);
    close(fd);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0)
        _exit(7);
    int status = 0;
    CHECK(wait(&status) == child && WEXITSTATUS(status) == 7, "the child that we know");
    CHECK(wait(&status) == -1 && errno == ECHILD, "only that one");
}

/* The first process of a PID namespace looks after orphans itself. */
static void first(void *memory)
{
    CHECK(getpid() == 1, "pid 1");
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD, "a child that we do not know");
    VERIFY(memory, SIZE, 1, "in a PID namespace");
}

/* A child and a grandchild have all the memory of their parent, and more than fits. */
static void forks(char *memory, int generations)
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        VERIFY(memory, SIZE, 1, "in the child");
        char *more = map(SIZE / 2);
        fill(more, SIZE / 2, generations);
        VERIFY(memory, SIZE, 1, "in the child again");
        if (generations > 1)
            forks(memory, generations - 1);
        VERIFY(more, SIZE / 2, generations, "more in the child");
        _exit(generations);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child, "the child's end");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == generations, "the child's status: %#x", status);
}

struct copy {
    char *from;
    pid_t process;
};

/* As py-spy does: stops every thread in the list of threads, then reads. */
static void spy(struct copy subject)
{
    char path[64], page[PAGE];
    snprintf(path, sizeof path, "/proc/%d/task", subject.process);
    DIR *tasks = opendir(path);
    CHECK(tasks != NULL, "%s", path);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        pid_t tid = atoi(task->d_name);
        if (tid == 0)
            continue;
        CHECK(ptrace(PTRACE_SEIZE, tid, 0, 0) == 0, "seize %d", tid);
        CHECK(ptrace(PTRACE_INTERRUPT, tid, 0, 0) == 0, "interrupt %d", tid);
        CHECK(waitpid(tid, NULL, __WALL) == tid, "stopped");
    }
    closedir(tasks);
    for (size_t at = 0; at < SIZE; at += PAGE) {
        struct iovec to = {page, PAGE}, from = {subject.from + at, PAGE};
        CHECK(process_vm_readv(subject.process, &to, 1, &from, 1, 0) == PAGE, "read at %zu", at);
        for (size_t i = 0; i < PAGE / 8; i++)
            CHECK(((uint64_t *)page)[i] == word(1, at / 8 + i), "word %zu of %zu", i, at);
    }
    printf("read by another\n");
    fflush(stdout);
    _exit(0);
}

static void *work(void *memory)
{
    uint64_t *words = memory, sum = 0;
    for (size_t round = 0; round < 400000; round++)
        sum += words[mix(round) % (SIZE / 8)];
    return (void *)sum;
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2, "beside KIND");
    const char *kind = argv[1];
    static char buffer[4096];
    // Under a filter it cannot be allocated.
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    if (strcmp(kind, "executed") == 0) {
        // No child is left from before the exec.
        CHECK(waitpid(-1, NULL, WNOHANG | __WALL) == -1 && errno == ECHILD, "a child of before");
        printf("executed\n");
        fflush(stdout);
        sleep(30);
        return 0;
    }
    int spied = strcmp(kind, "spied") == 0, ends[2];
    pid_t spying = 0;
    CHECK(pipe(ends) == 0, "pipe");
    if (spied && (spying = fork()) == 0) {
        // Made while all is small.
        struct copy subject;
        CHECK(read(ends[0], &subject, sizeof subject) == sizeof subject, "what to read");
        spy(subject);
    }
    char *memory = map(SIZE);
    fill(memory, SIZE, 1);
    if (strcmp(kind, "counts") == 0) {
        counts();
    } else if (strcmp(kind, "filtered") == 0) {
        filter(SECCOMP_RET_ERRNO | EPERM);
    } else if (strcmp(kind, "filtered_or_killed") == 0) {
        filter(SECCOMP_RET_KILL_PROCESS);
    } else if (strcmp(kind, "namespace") == 0) {
        CHECK(unshare(CLONE_NEWUSER) == 0, "a user namespace");
    } else if (strcmp(kind, "dropped") == 0) {
        CHECK(setgid(65534) == 0 && setuid(65534) == 0, "another user");
        fill(memory, SIZE, 2);
        VERIFY(memory, SIZE, 2, "as another user");
        fill(memory, SIZE, 1);
        forks(memory, 2);
    } else if (strcmp(kind, "rooted") == 0) {
        CHECK(chroot("/proc/self/fdinfo") == 0 && chdir("/") == 0, "another root");
        char *more = map(SIZE);
        fill(more, SIZE, 2);
        VERIFY(more, SIZE, 2, "in another root");
        munmap(more, SIZE);
        forks(memory, 2);
    } else if (strcmp(kind, "elsewhere") == 0) {
        CHECK(unshare(CLONE_NEWNET) == 0, "a network namespace");
        forks(memory, 2);
    } else if (strcmp(kind, "confined") == 0) {
        CHECK(unshare(CLONE_NEWNET | CLONE_NEWUSER) == 0, "namespaces");
        CHECK(chroot("/proc/self/fdinfo") == 0 && chdir("/") == 0, "another root");
        forks(memory, 2);
    } else if (strcmp(kind, "first") == 0) {
        first(memory);
    } else if (spied) {
        struct copy subject = {memory, getpid()};
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, work, memory) == 0, "a thread");
        CHECK(write(ends[1], &subject, sizeof subject) == sizeof subject, "what to read");
        int status = 0;
        CHECK(waitpid(spying, &status, 0) == spying && status == 0, "status %d", status);
        CHECK(pthread_join(thread, NULL) == 0, "the thread");
    } else if (strcmp(kind, "inherits") == 0) {
        inherits(memory);
    } else if (strcmp(kind, "executes") == 0) {
        // It fails first, and the process continues.
        CHECK(execl("/nowhere", "nowhere", (char *)NULL) == -1 && errno == ENOENT, "nothing there");
        VERIFY(memory, SIZE, 1, "after an exec that failed");
        printf("full\n");
        fflush(stdout);
        execl("/proc/self/exe", argv[0], "executed", (char *)NULL);
        CHECK(0, "exec");
    } else if (strcmp(kind, "executes_unseen") == 0) {
        printf("full\n");
        fflush(stdout);
        char *words[] = {argv[0], "executed", NULL};
        syscall(SYS_execve, "/proc/self/exe", words, environ);
        CHECK(0, "exec");
    } else if (strcmp(kind, "for_ever") == 0) {
        printf("full\n");
        fflush(stdout);
        for (;;)
            VERIFY(memory, SIZE, 1, "for ever");
    } else {
        CHECK(0, "unknown kind %s", kind);
    }
    for (int round = 0; round < 2; round++)
        VERIFY(memory, SIZE, 1, kind);
    printf("%s: all as it should be\n", kind);
    return 0;
}
