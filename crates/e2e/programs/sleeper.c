/* A process that sleeps with memory of its own beside one that works in more than half of the limit.
 * sleep MIB: fills memory, waits for SIGTERM, verifies. work MIB TOUCHES: reads at random, then prints. */
#include "check.h"

static volatile sig_atomic_t woken;

static void on_term(int signal)
{
    (void)signal;
    woken = 1;
}

int main(int argc, char **argv)
{
    CHECK(argc > 2, "arguments");
    size_t size = strtoul(argv[2], NULL, 10) * MIB;
    int sleeps = strcmp(argv[1], "sleep") == 0;
    sigset_t term, before;
    if (sleeps) {
        /* First of all: load control may let it wait for its turn, with half of its memory filled, until the other ends. */
        sigemptyset(&term);
        sigaddset(&term, SIGTERM);
        sigprocmask(SIG_BLOCK, &term, &before);
        signal(SIGTERM, on_term);
    }
    char *p = map(size);
    fill(p, size, 7);
    if (sleeps) {
        while (!woken)
            sigsuspend(&before);
        VERIFY(p, size, 7, "what slept");
        printf("slept well\n");
        return 0;
    }
    uint64_t at = 1;
    for (unsigned long left = strtoul(argv[3], NULL, 10); left > 0; left--) {
        at = mix(at);
        VERIFY_PART(p, at % (size / PAGE) * PAGE, 8, 7, "what is worked on");
    }
    printf("worked well\n");
    return 0;
}
