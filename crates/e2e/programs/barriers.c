/* barriers RANKS MEBIBYTES ROUNDS look|ask: processes that each walk through memory of their own, and after each round wait for
 * all others, as ranks of MPI do: they look at memory that they share, or ask their sockets, again and again. The parent prints
 * the sum of each. */
#include "check.h"

#include <stdatomic.h>
#include <stddef.h>

#include <sys/socket.h>

#define MOST 8

/* The end of rank i of its connection with rank j. */
static int ends[MOST][MOST];

struct shared {
    atomic_ulong come;
    uint64_t sums[MOST];
    /* Larger than a lock, as buffers of messages are. */
    char messages[1 << 20];
};

/* The memory for the sums of ranks that ask: no more than a lock has. */
#define SMALL offsetof(struct shared, messages)

static void look(struct shared *shared, unsigned long come)
{
    atomic_fetch_add(&shared->come, 1);
    while (atomic_load(&shared->come) < come)
        sched_yield();
}

static void ask(unsigned long me, unsigned long ranks)
{
    char word = 1;
    for (unsigned long other = 0; other < ranks; other++)
        CHECK(other == me || send(ends[me][other], &word, 1, 0) == 1, "no word sent");
    for (unsigned long other = 0; other < ranks; other++)
        while (other != me && recv(ends[me][other], &word, 1, MSG_DONTWAIT) != 1)
            CHECK(errno == EAGAIN, "a rank has ended");
}

static void rank(struct shared *shared, unsigned long me, unsigned long ranks, size_t words, unsigned long rounds,
                 int looks)
{
    uint64_t *memory = malloc(words * 8), sum = 0;
    CHECK(memory != NULL, "no memory");
    for (size_t i = 0; i < words; i++)
        memory[i] = me << 40 | i;
    for (unsigned long round = 1; round <= rounds; round++) {
        for (size_t i = 0; i < words; i++)
            sum = sum * 31 + (memory[i] += round);
        if (looks)
            look(shared, round * ranks);
        else
            ask(me, ranks);
    }
    shared->sums[me] = sum;
}

int main(int argc, char **argv)
{
    CHECK(argc == 5, "expected RANKS MEBIBYTES ROUNDS look|ask");
    unsigned long ranks = strtoul(argv[1], NULL, 10), rounds = strtoul(argv[3], NULL, 10);
    size_t words = strtoul(argv[2], NULL, 10) << 17;
    CHECK(ranks > 0 && ranks <= MOST, "1 to 8 ranks");
    int looks = strcmp(argv[4], "look") == 0;
    struct shared *shared =
        mmap(NULL, looks ? sizeof *shared : SMALL, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED, "no shared memory");
    for (unsigned long i = 0; i < ranks; i++)
        for (unsigned long j = 0; j < i; j++) {
            int pair[2];
            CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "no socket");
            ends[i][j] = pair[0], ends[j][i] = pair[1];
        }
    for (unsigned long me = 0; me < ranks; me++) {
        pid_t child = fork();
        CHECK(child >= 0, "no fork");
        if (child == 0) {
            rank(shared, me, ranks, words, rounds, looks);
            _exit(0);
        }
    }
    for (unsigned long me = 0; me < ranks; me++) {
        int status;
        CHECK(wait(&status) > 0 && status == 0, "a rank failed");
    }
    for (unsigned long me = 0; me < ranks; me++)
        printf("rank %lu: %016lx\n", me, shared->sums[me]);
    return 0;
}
