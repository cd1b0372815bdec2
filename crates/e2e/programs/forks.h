/* For the programs about forks: memory that is swapped out before the fork, and children that report. */
#include "check.h"

#define REGION (48 * MIB)
#define PRESSURE 128
#define swapped_region(seed) swapped_memory(REGION, seed, PRESSURE)

static pid_t forked(void)
{
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    return pid;
}

static void child_was_right(pid_t pid, const char *what)
{
    int code = reap(pid);
    errno = 0;
    CHECK(code == 0, "%s ended with %d", what, code);
}
