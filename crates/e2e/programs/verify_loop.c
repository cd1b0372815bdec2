/* verify_loop MEBIBYTES STOPFILE [forks]: fills memory, says "ready", and verifies and rewrites it piece by piece
 * until STOPFILE exists; then all of it once more. With "forks" children verify the memory that they inherited.
 * SIGUSR1 makes it use as much memory again, and say "grown". */
#include "check.h"

#define PIECE (256UL << 10)

static volatile sig_atomic_t grow;
static void on_usr1(int signal)
{
    (void)signal;
    grow = 1;
}

int main(int argc, char **argv)
{
    CHECK(argc > 2, "MEBIBYTES STOPFILE [forks]");
    size_t size = strtoul(argv[1], NULL, 10) * MIB, pieces = size / PIECE;
    int forks = argc > 3 && strcmp(argv[3], "forks") == 0;
    char *p = map(size), *more = NULL;
    unsigned char *seeds = calloc(pieces, 1);
    CHECK(seeds, "calloc");
    signal(SIGUSR1, on_usr1);
    for (size_t i = 0; i < pieces; i++)
        fill(p + i * PIECE, PIECE, i << 8);
    printf("ready\n");
    fflush(stdout);
    uint64_t state = 1;
    for (unsigned long round = 0; access(argv[2], F_OK) != 0; round++) {
        state = mix(state);
        size_t i = state % pieces;
        VERIFY(p + i * PIECE, PIECE, i << 8 | seeds[i], "piece");
        if (round % 4 == 0)
            fill(p + i * PIECE, PIECE, i << 8 | ++seeds[i]);
        if (forks && round % 64 == 32) {
            pid_t child = fork();
            CHECK(child >= 0, "fork");
            if (child == 0) {
                for (size_t k = 0; k < pieces; k += 1 + pieces / 16)
                    VERIFY(p + k * PIECE, PIECE, k << 8 | seeds[k], "inherited");
                _exit(0);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0, "child %#x", status);
        }
        if (grow) {
            grow = 0;
            more = map(size);
            fill(more, size, 7);
            printf("grown\n");
            fflush(stdout);
        }
    }
    for (size_t i = 0; i < pieces; i++)
        VERIFY(p + i * PIECE, PIECE, i << 8 | seeds[i], "at the end");
    if (more)
        VERIFY(more, size, 7, "what was grown");
    printf("all right\n");
    return 0;
}
