/* Pages that the kernel holds by a plain reference, without a pin, while memory is short: a later reader must get
 * the content at the time of lending. The same with pages that the kernel has pinned, and with pages that it
 * copies at once. */
#include "check.h"

#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif

#define LENT (MIB / 2)
#define PRESSURE 192

/* A connection on the loopback, whose receiver reads nothing yet. */
static void connect_pair(int ends[2])
{
    int listener = socket(AF_INET, SOCK_STREAM, 0), size = 8 << 20, small = 8192;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    CHECK(listener >= 0, "socket");
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    CHECK(bind(listener, (void *)&at, sizeof at) == 0 && listen(listener, 1) == 0, "listen");
    CHECK(getsockname(listener, (void *)&at, &length) == 0, "getsockname");
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    CHECK(connect(ends[0], (void *)&at, sizeof at) == 0, "connect");
    ends[1] = accept(listener, NULL, NULL);
    CHECK(ends[1] >= 0, "accept");
    close(listener);
}

static void verify_from(int fd, size_t size, uint64_t seed, const char *what)
{
    static uint64_t got[LENT / 8];
    for (size_t done = 0; done < size;) {
        ssize_t n = read(fd, (char *)got + done, size - done);
        CHECK(n > 0, "%s: read", what);
        done += n;
    }
    VERIFY(got, size, seed, what);
}

/* Filled, evicted and mapped again, so that the lent page came from a frame. */
static char *lendable(uint64_t seed)
{
    char *p = swapped_memory(LENT + 16 * MIB, seed, PRESSURE);
    VERIFY_PART(p, 0, LENT, seed, "brought in");
    return p;
}

static void zero_copy_send(void)
{
    int ends[2], on = 1;
    connect_pair(ends);
    CHECK(setsockopt(ends[0], SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0, "SO_ZEROCOPY");
    char *p = lendable(1);
    ssize_t sent = send(ends[0], p, LENT, MSG_ZEROCOPY | MSG_DONTWAIT);
    CHECK(sent > 64 * 1024, "send: %zd", sent);
    press(PRESSURE);
    press(PRESSURE);
    verify_from(ends[1], sent, 1, "sent with MSG_ZEROCOPY");
    VERIFY_PART(p, 0, LENT, 1, "what was sent");
}

static void zero_copy_message_by_number(void)
{
    int ends[2], on = 1;
    connect_pair(ends);
    CHECK(setsockopt(ends[0], SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0, "SO_ZEROCOPY");
    char *p = lendable(2);
    struct iovec range = {p, LENT};
    struct msghdr message = {.msg_iov = &range, .msg_iovlen = 1};
    long sent = syscall(SYS_sendmsg, ends[0], &message, MSG_ZEROCOPY | MSG_DONTWAIT);
    CHECK(sent > 64 * 1024, "sendmsg: %ld", sent);
    press(PRESSURE);
    press(PRESSURE);
    verify_from(ends[1], sent, 2, "sent by number");
}

/* A pipe of as many pages as are lent; and a child that is forked then, for which the pages are lent as well. */
static void splice_to_pipe(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    CHECK(fcntl(ends[1], F_SETPIPE_SZ, LENT) >= (int)LENT, "F_SETPIPE_SZ");
    char *p = lendable(3);
    for (size_t done = 0; done < LENT;) {
        struct iovec range = {p + done, LENT - done};
        ssize_t n = vmsplice(ends[1], &range, 1, 0);
        CHECK(n > 0, "vmsplice");
        done += n;
    }
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        fill(p, LENT, 33);
        press(PRESSURE);
        VERIFY_PART(p, 0, LENT, 33, "the child's");
        _exit(7);
    }
    press(PRESSURE);
    CHECK(reap(pid) == 7, "the child");
    press(PRESSURE);
    verify_from(ends[0], LENT, 3, "spliced");
    VERIFY_PART(p, 0, LENT, 3, "what was spliced");
}

/* Huge pages, lent whole. */
static void splice_of_huge_pages(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    CHECK(fcntl(ends[1], F_SETPIPE_SZ, LENT) >= (int)LENT, "F_SETPIPE_SZ");
    size_t size = 96 * MIB;
    char *p = map(size);
    fill(p, size, 4);
    press(PRESSURE);
    note_absent("absent", p, size);
    VERIFY(p, size, 4, "in order");
    for (size_t done = 0; done < LENT;) {
        struct iovec range = {p + size - 4 * MIB + done, LENT - done};
        ssize_t n = vmsplice(ends[1], &range, 1, 0);
        CHECK(n > 0, "vmsplice");
        done += n;
    }
    for (int i = 0; i < 3; i++)
        VERIFY(p, size, 4, "in order again");
    press(PRESSURE);
    static uint64_t got[LENT / 8];
    for (size_t done = 0; done < LENT;) {
        ssize_t n = read(ends[0], (char *)got + done, LENT - done);
        CHECK(n > 0, "read");
        done += n;
    }
    size_t wrong = 0, first = (size - 4 * MIB) / 8;
    for (size_t i = 0; i < LENT / 8; i++)
        wrong += got[i] != word(4, first + i);
    CHECK(wrong == 0, "%zu words of the pipe are wrong", wrong);
}

/* One page of each huge page, of which the program discards half while it is on its way out: the kernel's reference keeps
 * all small pages of it from moving for as long as it lasts. */
static void splice_from_huge_pages(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0 && fcntl(ends[1], F_SETPIPE_SZ, MIB) > 0, "a pipe");
    enum { N = 20 };
    size_t step = 2 * MIB, size = N * step;
    char *p = map(size), *other = map(size);
    fill(p, size, 0);
    press(PRESSURE);
    note_absent("absent", p, size);
    for (uint64_t turn = 1; turn <= 12; turn++) {
        fill(p, size, turn);
        for (size_t i = 0; i < N; i++) {
            struct iovec page = {p + i * step + i * PAGE, PAGE};
            CHECK(vmsplice(ends[1], &page, 1, 0) == (ssize_t)PAGE, "vmsplice");
        }
        for (size_t i = 0; i < N; i++) {
            fill_part(other, i * step, step, turn);
            size_t half = (i + N / 2) % N * step + MIB;
            CHECK(madvise(p + half, MIB, MADV_DONTNEED) == 0, "advice");
        }
        VERIFY(other, size, turn, "other memory");
        for (size_t i = 0; i < N; i++) {
            VERIFY_PART(p, i * step, MIB, turn, "the half that is left");
            VERIFY_ZERO(p + i * step + MIB, MIB, "the half that was discarded");
        }
        static uint64_t got[PAGE / 8];
        for (size_t i = 0; i < N; i++) {
            CHECK(read(ends[0], got, PAGE) == (ssize_t)PAGE, "read");
            size_t first = (i * step + i * PAGE) / 8;
            for (size_t k = 0; k < PAGE / 8; k++)
                CHECK(got[k] == word(turn, first + k), "word %zu of page %zu of the pipe is wrong", k, i);
        }
    }
}

/* The zero-copy send of io_uring, with a ring made by hand. */
static void ring_send(void)
{
    int ends[2];
    connect_pair(ends);
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    int ring = (int)syscall(SYS_io_uring_setup, 8, &params);
    CHECK(ring >= 0, "io_uring_setup");
    size_t size = params.sq_off.array + params.sq_entries * 4;
    char *sq = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *sqes = mmap(NULL, params.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    CHECK(sq != MAP_FAILED && (void *)sqes != MAP_FAILED, "the ring's memory");
    char *p = lendable(5);
    memset(sqes, 0, sizeof *sqes);
    sqes->opcode = 47; /* IORING_OP_SEND_ZC */
    sqes->fd = ends[0];
    sqes->addr = (uintptr_t)p;
    sqes->len = LENT;
    sqes->msg_flags = MSG_DONTWAIT;
    *(unsigned *)(sq + params.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(sq + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1, "io_uring_enter");
    char *cq = mmap(NULL, params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_CQ_RING);
    CHECK(cq != MAP_FAILED, "the completions");
    int sent = ((struct io_uring_cqe *)(cq + params.cq_off.cqes))->res;
    CHECK(sent > 64 * 1024, "SEND_ZC: %d", sent);
    press(PRESSURE);
    press(PRESSURE);
    verify_from(ends[1], sent, 5, "sent by io_uring");
}

/* Accesses of other processes to this process' memory while it is swapped out. */
static void read_by_others(void)
{
    char *p = lendable(6);
    press(PRESSURE);
    fflush(stdout);
    pid_t parent = getpid(), pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        static uint64_t got[LENT / 8];
        struct iovec mine = {got, LENT}, theirs = {p, LENT};
        CHECK(process_vm_readv(parent, &mine, 1, &theirs, 1, 0) == (ssize_t)LENT, "process_vm_readv");
        VERIFY(got, LENT, 6, "read by another process");
        fill(got, LENT, 7);
        CHECK(process_vm_writev(parent, &mine, 1, &theirs, 1, 0) == (ssize_t)LENT, "process_vm_writev");
        _exit(7);
    }
    CHECK(reap(pid) == 7, "the child");
    press(PRESSURE);
    VERIFY_PART(p, 0, LENT, 7, "written by another process");
}

/* The same pages are lent again and again, while threads fill memory: exchanged memory must not be lost. */
static void *keep_filling(void *at)
{
    for (uint64_t round = 1; round <= 40; round++) {
        fill(at, 24 * MIB, round);
        VERIFY(at, 24 * MIB, round, "a thread's memory");
    }
    return NULL;
}

static void lends_all_the_time(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    CHECK(fcntl(ends[1], F_SETPIPE_SZ, LENT) >= (int)LENT, "F_SETPIPE_SZ");
    size_t size = 48 * MIB;
    char *p = map(size);
    fill(p, size, 8);
    press(PRESSURE);
    note_absent("absent", p, size);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, keep_filling, map(24 * MIB)) == 0, "pthread_create");
    for (int round = 0; round < 200; round++) {
        size_t at = (size_t)(round * 7919) % (size / LENT - 1) * LENT;
        struct iovec range = {p + at, LENT / 2};
        ssize_t n = vmsplice(ends[1], &range, 1, 0);
        CHECK(n > 0, "vmsplice");
        VERIFY_PART(p, (at + size / 2) % size / MIB * MIB, MIB, 8, "elsewhere");
        static uint64_t got[LENT / 8];
        for (ssize_t done = 0; done < n;) {
            ssize_t more = read(ends[0], (char *)got + done, n - done);
            CHECK(more > 0, "read");
            done += more;
        }
        size_t wrong = 0;
        for (ssize_t i = 0; i < n / 8; i++)
            wrong += got[i] != word(8, at / 8 + i);
        CHECK(wrong == 0, "round %d: %zu words of the pipe are wrong", round, wrong);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    VERIFY(p, size, 8, "at the end");
}

/* Much adjacent memory is lent at once, and other memory is then read in long runs: into the frames that the lent pages
 * left, more of them at a time than the engine exchanges at once. */
static void lends_much(void)
{
    enum { PIPES = 32 };
    int ends[PIPES][2];
    size_t size = PIPES * LENT, other_size = 64 * MIB;
    char *other = map(other_size), *p = map(size);
    fill(other, other_size, 6);
    fill(p, size, 5);
    for (int i = 0; i < PIPES; i++) {
        CHECK(pipe(ends[i]) == 0, "pipe");
        CHECK(fcntl(ends[i][1], F_SETPIPE_SZ, LENT) >= (int)LENT, "F_SETPIPE_SZ");
        for (size_t done = 0; done < LENT;) {
            struct iovec range = {p + i * LENT + done, LENT - done};
            ssize_t n = vmsplice(ends[i][1], &range, 1, 0);
            CHECK(n > 0, "vmsplice");
            done += n;
        }
    }
    note_absent("absent", other, other_size);
    for (int round = 0; round < 4; round++)
        VERIFY(other, other_size, 6, "other memory");
    for (int i = 0; i < PIPES; i++) {
        static uint64_t got[LENT / 8];
        for (size_t done = 0; done < LENT;) {
            ssize_t n = read(ends[i][0], (char *)got + done, LENT - done);
            CHECK(n > 0, "read");
            done += n;
        }
        size_t wrong = 0;
        for (size_t at = 0; at < LENT / 8; at++)
            wrong += got[at] != word(5, i * LENT / 8 + at);
        CHECK(wrong == 0, "pipe %d: %zu words are wrong", i, wrong);
    }
    VERIFY(p, size, 5, "what was lent");
}

int main(int argc, char **argv)
{
    static const struct part parts[] = {
        {"zero_copy_send", zero_copy_send},
        {"zero_copy_message_by_number", zero_copy_message_by_number},
        {"splice_to_pipe", splice_to_pipe},
        {"splice_of_huge_pages", splice_of_huge_pages}, {"splice_from_huge_pages", splice_from_huge_pages},
        {"ring_send", ring_send},
        {"read_by_others", read_by_others},
        {"lends_all_the_time", lends_all_the_time},
        {"lends_much", lends_much},
    };
    return run_part(parts, sizeof parts / sizeof parts[0], argc, argv);
}
