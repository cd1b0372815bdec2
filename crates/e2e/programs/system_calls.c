/* Faults inside system calls, and other ways in which the kernel or another process accesses swapped memory. Files
 * go to the working folder. */
#include "check.h"

#include <sys/resource.h>
#include <threads.h>

#include <linux/futex.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>

#define REGION (32 * MIB)
#define PRESSURE 128

static char *swapped_region(uint64_t seed)
{
    char *p = map(REGION);
    fill(p, REGION, seed);
    return p;
}

static void push_out(const char *p)
{
    press(PRESSURE);
    note_absent("absent", p, REGION);
}

static int scratch_file(int flags)
{
    int fd = open("scratch", O_RDWR | O_CREAT | O_TRUNC | flags, 0600);
    CHECK(fd >= 0, "a scratch file");
    unlink("scratch");
    return fd;
}

static void all_of(ssize_t (*call)(int, void *, size_t, off_t), int fd, char *p, const char *what)
{
    for (size_t at = 0; at < REGION;) {
        ssize_t n = call(fd, p + at, REGION - at < 3 * MIB ? REGION - at : 3 * MIB, at);
        CHECK(n > 0, "%s at %zu", what, at);
        at += n;
    }
}

static ssize_t by_write(int fd, void *p, size_t n, off_t at) { (void)at; return write(fd, p, n); }
static ssize_t by_read(int fd, void *p, size_t n, off_t at) { (void)at; return read(fd, p, n); }
static ssize_t by_pwrite(int fd, void *p, size_t n, off_t at) { return pwrite(fd, p, n, at); }
static ssize_t by_pread(int fd, void *p, size_t n, off_t at) { return pread(fd, p, n, at); }

static ssize_t vectored(int fd, char *p, size_t n, off_t at, int writing)
{
    struct iovec parts[8];
    for (int i = 0; i < 8; i++)
        parts[i] = (struct iovec){p + i * (n / 8), n / 8};
    return writing ? pwritev(fd, parts, 8, at) : preadv(fd, parts, 8, at);
}
static ssize_t by_pwritev(int fd, void *p, size_t n, off_t at) { return vectored(fd, p, n, at, 1); }
static ssize_t by_preadv(int fd, void *p, size_t n, off_t at) { return vectored(fd, p, n, at, 0); }

static void through_file(int flags)
{
    ssize_t (*writers[])(int, void *, size_t, off_t) = {by_write, by_pwrite, by_pwritev};
    ssize_t (*readers[])(int, void *, size_t, off_t) = {by_read, by_pread, by_preadv};
    for (int way = 0; way < 3; way++) {
        int fd = scratch_file(flags);
        char *from = swapped_region(1 + way), *into = swapped_region(10);
        push_out(from);
        all_of(writers[way], fd, from, "writing");
        lseek(fd, 0, SEEK_SET);
        push_out(into);
        all_of(readers[way], fd, into, "reading");
        VERIFY(into, REGION, 1 + way, "read back");
        press(PRESSURE);
        VERIFY(into, REGION, 1 + way, "read back, and swapped");
        VERIFY(from, REGION, 1 + way, "the source");
        close(fd);
        munmap(from, REGION);
        munmap(into, REGION);
    }
}

static void files(void) { through_file(0); }
static void direct_files(void) { through_file(O_DIRECT); }

struct stream {
    int fd;
    char *p;
};

static void *sender(void *argument)
{
    struct stream *stream = argument;
    for (size_t at = 0; at < REGION;) {
        ssize_t n = send(stream->fd, stream->p + at, REGION - at, 0);
        CHECK(n > 0, "send");
        at += n;
    }
    return NULL;
}

static void through_socket(int pair[2])
{
    char *from = swapped_region(20), *into = swapped_region(21);
    push_out(from);
    pthread_t thread;
    struct stream stream = {pair[0], from};
    CHECK(pthread_create(&thread, NULL, sender, &stream) == 0, "a thread");
    for (size_t at = 0; at < REGION;) {
        struct iovec parts[2] = {{into + at, (REGION - at) / 2}, {into + at + (REGION - at) / 2, REGION - at - (REGION - at) / 2}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t n = at % 3 ? recv(pair[1], into + at, REGION - at, 0) : recvmsg(pair[1], &message, 0);
        CHECK(n > 0, "recv");
        at += n;
    }
    pthread_join(thread, NULL);
    VERIFY(into, REGION, 20, "received");
    press(PRESSURE);
    VERIFY(into, REGION, 20, "received, and swapped");
}

static void sockets(void)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
    through_socket(pair);
}

static void tcp(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (void *)&address, length) == 0 && listen(listener, 1) == 0, "listen");
    CHECK(getsockname(listener, (void *)&address, &length) == 0, "getsockname");
    int pair[2] = {socket(AF_INET, SOCK_STREAM, 0)};
    CHECK(connect(pair[0], (void *)&address, length) == 0, "connect");
    pair[1] = accept(listener, NULL, NULL);
    CHECK(pair[1] >= 0, "accept");
    through_socket(pair);
}

static void *drain(void *argument)
{
    struct stream *stream = argument;
    for (size_t at = 0; at < REGION;) {
        ssize_t n = read(stream->fd, stream->p + at, REGION - at);
        CHECK(n > 0, "reading the pipe");
        at += n;
    }
    return NULL;
}

static void pipes(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    char *from = swapped_region(22), *into = swapped_region(23);
    push_out(from);
    pthread_t thread;
    struct stream stream = {ends[0], into};
    CHECK(pthread_create(&thread, NULL, drain, &stream) == 0, "a thread");
    for (size_t at = 0; at < REGION;) {
        struct iovec part = {from + at, REGION - at < MIB ? REGION - at : MIB};
        /* vmsplice hands the pages themselves to the pipe: they are pinned. */
        ssize_t n = at % (2 * MIB) ? write(ends[1], part.iov_base, part.iov_len) : vmsplice(ends[1], &part, 1, 0);
        CHECK(n > 0, "into the pipe");
        at += n;
    }
    pthread_join(thread, NULL);
    VERIFY(into, REGION, 22, "through a pipe");
}

/* Calls that fill small structures, each in its own swapped page. */
static void small_results(void)
{
    char *p = swapped_region(24);
    push_out(p);
    struct stat *status = (void *)(p + 10 * PAGE);
    char *path = p + 20 * PAGE + 100;
    strcpy(path, "/dev/null");
    struct timespec *now = (void *)(p + 30 * PAGE);
    struct rusage *usage = (void *)(p + 40 * PAGE);
    int *ends = (void *)(p + 50 * PAGE);
    char *cwd = p + 60 * PAGE, *random_bytes = p + 70 * PAGE, *link = p + 80 * PAGE;
    press(PRESSURE);
    CHECK(stat(path, status) == 0 && S_ISCHR(status->st_mode), "stat");
    CHECK(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, now) == 0, "clock_gettime");
    CHECK(getrusage(RUSAGE_SELF, usage) == 0 && usage->ru_maxrss > 0, "getrusage");
    CHECK(pipe(ends) == 0 && ends[0] > 2, "pipe");
    CHECK(getcwd(cwd, PAGE) == cwd, "getcwd");
    CHECK(getrandom(random_bytes, PAGE, 0) == (ssize_t)PAGE, "getrandom");
    CHECK(readlink("/proc/self/exe", link, PAGE) > 0, "readlink");
    press(PRESSURE);
    CHECK(S_ISCHR(status->st_mode) && strcmp(path, "/dev/null") == 0, "after swapping");
    VERIFY_PART(p, 90 * PAGE, REGION - 90 * PAGE, 24, "the rest");
}

struct ring {
    int fd;
    struct io_uring_params params;
    char *sq, *cq;
    struct io_uring_sqe *sqes;
};

static int open_ring(struct ring *ring)
{
    memset(ring, 0, sizeof *ring);
    ring->fd = syscall(SYS_io_uring_setup, 64, &ring->params);
    if (ring->fd < 0)
        return -1;
    struct io_uring_params *params = &ring->params;
    ring->sq = mmap(NULL, params->sq_off.array + params->sq_entries * 4, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQ_RING);
    ring->cq = mmap(NULL, params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe),
                    PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_CQ_RING);
    ring->sqes = mmap(NULL, params->sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQES);
    CHECK(ring->sq != MAP_FAILED && ring->cq != MAP_FAILED && ring->sqes != MAP_FAILED, "ring");
    return 0;
}

/* Submits `count` requests of `size` bytes each from `at` on and checks each. */
static void submit(struct ring *ring, int opcode, int fd, char *p, size_t at, size_t size, int count)
{
    unsigned *tail = (void *)(ring->sq + ring->params.sq_off.tail);
    unsigned mask = *(unsigned *)(ring->sq + ring->params.sq_off.ring_mask);
    unsigned *array = (void *)(ring->sq + ring->params.sq_off.array);
    for (int i = 0; i < count; i++) {
        unsigned slot = (*tail + i) & mask;
        struct io_uring_sqe *sqe = &ring->sqes[slot];
        memset(sqe, 0, sizeof *sqe);
        sqe->opcode = opcode;
        sqe->fd = fd;
        sqe->addr = (uintptr_t)(p + at + i * size);
        sqe->len = size;
        sqe->off = at + i * size;
        array[slot] = slot;
    }
    __atomic_store_n(tail, *tail + count, __ATOMIC_RELEASE);
    int entered;
    do
        entered = syscall(SYS_io_uring_enter, ring->fd, count, count, IORING_ENTER_GETEVENTS, NULL, 0);
    while (entered < 0 && errno == EINTR);
    CHECK(entered == count, "io_uring_enter gave %d", entered);
    unsigned *head = (void *)(ring->cq + ring->params.cq_off.head);
    unsigned *cq_tail = (void *)(ring->cq + ring->params.cq_off.tail);
    unsigned cq_mask = *(unsigned *)(ring->cq + ring->params.cq_off.ring_mask);
    struct io_uring_cqe *cqes = (void *)(ring->cq + ring->params.cq_off.cqes);
    for (int i = 0; i < count; i++) {
        while (*head == __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE))
            syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        int result = cqes[*head & cq_mask].res;
        CHECK(result == (int)size, "a completion says %d", result);
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    }
}

static void uring_through(int flags, int registered)
{
    struct ring ring;
    CHECK(open_ring(&ring) == 0, "io_uring_setup");
    int fd = scratch_file(flags);
    size_t size = 64 * 1024;
    char *from = swapped_region(30), *into = swapped_region(31);
    push_out(from);
    if (registered) {
        /* The kernel pins the pages for as long as they are registered. */
        struct iovec part = {into, 4 * MIB};
        CHECK(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &part, 1) == 0, "registering");
    }
    for (size_t at = 0; at < REGION; at += 32 * size)
        submit(&ring, IORING_OP_WRITE, fd, from, at, size, 32);
    push_out(into);
    if (registered)
        submit(&ring, IORING_OP_READ_FIXED, fd, into, 0, size, 32);
    for (size_t at = registered ? 32 * size : 0; at < REGION; at += 32 * size)
        submit(&ring, IORING_OP_READ, fd, into, at, size, 32);
    VERIFY(into, REGION, 30, "read by io_uring");
    press(PRESSURE);
    VERIFY(into, REGION, 30, "read by io_uring, and swapped");
    close(ring.fd);
}

static void uring(void) { uring_through(0, 0); }
static void uring_direct(void) { uring_through(O_DIRECT, 0); }
static void uring_registered(void) { uring_through(O_DIRECT, 1); }

struct meeting {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint32_t word;
    int turn;
};

static void *other_side(void *argument)
{
    struct meeting *meeting = argument;
    for (int i = 0; i < 20; i++) {
        pthread_mutex_lock(&meeting->mutex);
        while (meeting->turn != 1)
            pthread_cond_wait(&meeting->changed, &meeting->mutex);
        meeting->turn = 0;
        pthread_cond_signal(&meeting->changed);
        pthread_mutex_unlock(&meeting->mutex);
    }
    while (syscall(SYS_futex, &meeting->word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0) < 0)
        if (errno == EAGAIN)
            break;
    return NULL;
}

static void futexes(void)
{
    char *p = swapped_region(40);
    struct meeting *meeting = (void *)(p + 5 * MIB);
    memset(meeting, 0, sizeof *meeting);
    pthread_mutex_init(&meeting->mutex, NULL);
    pthread_cond_init(&meeting->changed, NULL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, other_side, meeting) == 0, "a thread");
    for (int i = 0; i < 20; i++) {
        if (i % 5 == 0)
            press(PRESSURE);
        pthread_mutex_lock(&meeting->mutex);
        meeting->turn = 1;
        pthread_cond_signal(&meeting->changed);
        while (meeting->turn != 0)
            pthread_cond_wait(&meeting->changed, &meeting->mutex);
        pthread_mutex_unlock(&meeting->mutex);
    }
    /* The other side waits on a word that is evicted meanwhile. */
    usleep(50000);
    press(PRESSURE);
    note_absent("absent", p, REGION);
    meeting->word = 1;
    syscall(SYS_futex, &meeting->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    pthread_join(thread, NULL);
    VERIFY_PART(p, 0, 5 * MIB, 40, "before");
    VERIFY_PART(p, 6 * MIB, REGION - 6 * MIB, 40, "after");
}

/* A thread that ends while it holds mutexes whose pages are swapped out: the kernel marks them. */
static void *holds_at_end(void *argument)
{
    pthread_mutex_t **mutexes = argument;
    for (int i = 0; mutexes[i]; i++)
        CHECK(pthread_mutex_lock(mutexes[i]) == 0, "locking");
    press(PRESSURE);
    note_absent("absent", (char *)mutexes[0], 6 * MIB);
    return NULL;
}

static int c11_holds_at_end(void *argument)
{
    holds_at_end(argument);
    return 0;
}

static void robust_mutexes(void)
{
    enum { COUNT = 6 };
    char *p = map(COUNT * MIB);
    fill(p, COUNT * MIB, 44);
    pthread_mutex_t *mutexes[COUNT + 1] = {0};
    for (int way = 0; way < 3; way++) {
        for (int i = 0; i < COUNT; i++) {
            pthread_mutexattr_t attributes;
            pthread_mutexattr_init(&attributes);
            CHECK(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0, "setrobust");
            if (i % 2)
                pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
            mutexes[i] = (void *)(p + i * MIB);
            CHECK(pthread_mutex_init(mutexes[i], &attributes) == 0, "a mutex");
        }
        pthread_t thread;
        thrd_t c11;
        if (way == 0)
            CHECK(thrd_create(&c11, c11_holds_at_end, mutexes) == thrd_success, "a thread");
        else
            CHECK(pthread_create(&thread, NULL, holds_at_end, mutexes) == 0, "a thread");
        if (way == 2)
            pthread_cancel(thread);
        CHECK((way == 0 ? thrd_join(c11, NULL) : pthread_join(thread, NULL)) == 0, "joining");
        for (int i = 0; way < 2 && i < COUNT; i++) {
            struct timespec soon;
            clock_gettime(CLOCK_REALTIME, &soon);
            soon.tv_sec += 10;
            int got = pthread_mutex_timedlock(mutexes[i], &soon);
            CHECK(got == EOWNERDEAD, "mutex %d of way %d: %s", i, way, strerror(got));
            CHECK(pthread_mutex_consistent(mutexes[i]) == 0, "making it consistent");
            CHECK(pthread_mutex_unlock(mutexes[i]) == 0, "unlocking");
        }
    }
}

/* Limits on mapped memory, set after the engine has made its own mappings: they are the program's own. */
static void own_limits(void)
{
    char *p = swapped_region(45);
    push_out(p);
    const int resources[] = {RLIMIT_AS, RLIMIT_DATA};
    for (int i = 0; i < 2; i++) {
        struct rlimit before, limit, now;
        CHECK(getrlimit(resources[i], &before) == 0, "getrlimit");
        limit.rlim_cur = 2048 * MIB;
        limit.rlim_max = before.rlim_max;
        if (i == 0)
            CHECK(setrlimit(resources[i], &limit) == 0, "setrlimit");
        else
            CHECK(prlimit(0, resources[i], &limit, NULL) == 0, "prlimit");
        CHECK(getrlimit(resources[i], &now) == 0 && now.rlim_cur == limit.rlim_cur && now.rlim_max == limit.rlim_max,
              "getrlimit tells %lu", (unsigned long)now.rlim_cur);
        CHECK(prlimit(0, resources[i], NULL, &now) == 0 && now.rlim_cur == limit.rlim_cur, "prlimit tells");
        char *one = mmap(NULL, 1024 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(one != MAP_FAILED, "what is within the limit");
        char *more = mmap(NULL, 1536 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(more == MAP_FAILED && errno == ENOMEM, "what passes it");
        CHECK(munmap(one, 1024 * MIB) == 0, "munmap");
        /* An executed program has it as well. */
        fflush(stdout);
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            char *line[] = {"sh", "-c", i == 0 ? "ulimit -S -v" : "ulimit -S -d", NULL};
            execv("/nowhere/sh", line);
            execv("/bin/sh", line);
        }
        CHECK(reap(pid) == 0, "a shell");
        CHECK(setrlimit(resources[i], &before) == 0, "as it was");
    }
    VERIFY(p, REGION, 45, "after that");
}

static char *handled;
static volatile int handler_runs;
static void on_signal(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    char on_stack[64 * 1024];
    fill(on_stack, sizeof on_stack, 51);
    if (wrong_words(on_stack, 0, sizeof on_stack, 51) == 0 && wrong_words(handled, 0, 64 * PAGE, 50) == 0)
        handler_runs++;
}

static void signal_stack(void)
{
    char *p = swapped_region(50);
    handled = p;
    char *own_stack = map(16 * MIB);
    fill(own_stack, 16 * MIB, 52);
    stack_t stack = {.ss_sp = own_stack, .ss_size = 16 * MIB};
    CHECK(sigaltstack(&stack, NULL) == 0, "sigaltstack");
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    for (int i = 0; i < 4; i++) {
        press(PRESSURE);
        raise(SIGUSR1);
    }
    note_absent("absent", p, REGION);
    CHECK(handler_runs == 4, "%d runs of the handler", handler_runs);
    /* Signals that interrupt faults. */
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 3; i++) {
        press(PRESSURE / 2);
        VERIFY(p, REGION, 50, "under a rain of signals");
    }
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK(handler_runs > 4, "no signal came");
}

/* Another process reads and writes ours. Pushed out before the fork: what both have in memory is evicted last. */
static void from_outside(void)
{
    char *p = swapped_region(60);
    push_out(p);
    int go[2], done[2];
    CHECK(pipe(go) == 0 && pipe(done) == 0, "pipe");
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        char byte;
        CHECK(read(go[0], &byte, 1) == 1, "waiting");
        static char copy[REGION / 2];
        struct iovec mine = {copy, sizeof copy}, theirs = {p, sizeof copy};
        ssize_t got = process_vm_readv(parent, &mine, 1, &theirs, 1, 0);
        CHECK(got == (ssize_t)sizeof copy, "process_vm_readv gave %zd", got);
        VERIFY(copy, sizeof copy, 60, "read from outside");
        fill(copy, sizeof copy, 61);
        got = process_vm_writev(parent, &mine, 1, &theirs, 1, 0);
        CHECK(got == (ssize_t)sizeof copy, "process_vm_writev gave %zd", got);
        _exit(write(done[1], "k", 1) != 1);
    }
#ifdef PR_SET_PTRACER
    prctl(PR_SET_PTRACER, child, 0, 0, 0);
#endif
    press(PRESSURE);
    char byte = 'g';
    CHECK(write(go[1], &byte, 1) == 1, "telling");
    close(done[1]);
    CHECK(read(done[0], &byte, 1) == 1, "the other process failed");
    CHECK(reap(child) == 0, "the other process");
    VERIFY_PART(p, 0, REGION / 2, 61, "written from outside");
    VERIFY_PART(p, REGION / 2, REGION / 2, 60, "the rest");
}

/* Several threads fault at once on the same and on different pages. */
struct share {
    char *p;
    int which;
};
static void *reader(void *argument)
{
    struct share *share = argument;
    for (uint64_t i = 0; i < 4 * REGION / PAGE; i++) {
        uint64_t page = mix(i ^ ((uint64_t)share->which << 40)) % (REGION / PAGE);
        CHECK(wrong_words(share->p, page * PAGE, PAGE, 70) == 0, "page %lu", (unsigned long)page);
    }
    return NULL;
}

static void threads_fault_at_once(void)
{
    char *p = swapped_region(70);
    char *beside = map(64 * MIB);
    fill(beside, 64 * MIB, 71);
    push_out(p);
    pthread_t threads[6];
    struct share shares[6];
    for (int i = 0; i < 6; i++) {
        shares[i] = (struct share){p, i / 2};
        CHECK(pthread_create(&threads[i], NULL, reader, &shares[i]) == 0, "a thread");
    }
    VERIFY(beside, 64 * MIB, 71, "other memory meanwhile");
    for (int i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    VERIFY(p, REGION, 70, "in the end");
}

/* For the test's gdb: a known word, swapped out, and a loop that continues. */
char *gdb_region;
volatile uint64_t gdb_resident = 0x600df00d;
static void waits_for_gdb(void)
{
    gdb_region = swapped_region(80);
    push_out(gdb_region);
    /* Attaching from outside is allowed for any process of this user. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < 200 && access("go-on", F_OK) != 0; i++) {
        VERIFY_PART(gdb_region, (i * 16 % (REGION / PAGE)) * PAGE, PAGE, 80, "while waiting");
        usleep(50000);
    }
    VERIFY(gdb_region, REGION, 80, "after gdb");
    fill(gdb_region, REGION, 81);
    press(PRESSURE);
    VERIFY(gdb_region, REGION, 81, "after gdb, written");
}

static void dumps_core(void)
{
    char *p = swapped_region(90);
    push_out(p);
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_CORE, &limit);
    printf("about to abort\n");
    fflush(stdout);
    abort();
}

/* A program reads and writes its own memory by /proc/self/mem, as runtimes do that write code; also where it is read-only,
 * was never touched, or is not there. */
static void own_proc_mem(void)
{
    char *p = swapped_memory(REGION, 31, PRESSURE), *fresh = map(4 * MIB), buffer[3 * PAGE];
    int fd = open("/proc/self/mem", O_RDWR);
    CHECK(fd >= 0, "opening /proc/self/mem");
    for (size_t at = 0; at + sizeof buffer <= REGION; at += 64 * 1024) {
        ssize_t got = pread(fd, buffer, sizeof buffer, (off_t)(uintptr_t)(p + at));
        CHECK(got > 0 && memcmp(buffer, p + at, got) == 0, "pread at %zu: %zd", at, got);
    }
    press(PRESSURE);
    CHECK(lseek(fd, (off_t)(uintptr_t)(p + 100 * PAGE), SEEK_SET) > 0, "lseek");
    CHECK(read(fd, buffer, PAGE) == PAGE && memcmp(buffer, p + 100 * PAGE, PAGE) == 0, "read");
    press(PRESSURE);
    CHECK(mprotect(p, REGION / 2, PROT_READ) == 0, "mprotect");
    memset(buffer, 'w', PAGE);
    for (size_t at = 0; at < REGION; at += MIB)
        CHECK(pwrite(fd, buffer, PAGE, (off_t)(uintptr_t)(p + at)) == PAGE, "pwrite at %zu", at);
    CHECK(pwrite(fd, buffer, PAGE, (off_t)(uintptr_t)(fresh + MIB)) == PAGE, "pwrite to new memory");
    CHECK(pread(fd, buffer + PAGE, PAGE, (off_t)(uintptr_t)(fresh + 2 * MIB)) == PAGE, "pread of new memory");
    press(PRESSURE);
    for (size_t at = 0; at < REGION; at += MIB) {
        CHECK(memcmp(p + at, buffer, PAGE) == 0, "what was written at %zu", at);
        VERIFY_PART(p, at + PAGE, MIB - PAGE, 31, "beside it");
    }
    CHECK(memcmp(fresh + MIB, buffer, PAGE) == 0 && fresh[2 * MIB] == 0, "new memory");
    CHECK(munmap(fresh, 4 * MIB) == 0, "munmap");
    errno = 0;
    CHECK(pread(fd, buffer, PAGE, (off_t)(uintptr_t)fresh) == -1 && errno == EIO, "pread of nothing");
    close(fd);
}

static const struct part parts[] = {
    {"own_proc_mem", own_proc_mem},
    {"files", files},
    {"direct_files", direct_files},
    {"sockets", sockets},
    {"tcp", tcp},
    {"pipes", pipes},
    {"small_results", small_results},
    {"uring", uring},
    {"uring_direct", uring_direct},
    {"uring_registered", uring_registered},
    {"futexes", futexes},
    {"robust_mutexes", robust_mutexes},
    {"own_limits", own_limits},
    {"signal_stack", signal_stack},
    {"from_outside", from_outside},
    {"threads_fault_at_once", threads_fault_at_once},
    {"waits_for_gdb", waits_for_gdb},
    {"dumps_core", dumps_core},
};

int main(int argc, char **argv)
{
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
