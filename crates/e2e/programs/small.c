/* A program that needs little memory, in parts for the contract's tests. */
#include "check.h"

#include <dirent.h>

/* How many threads this process has, the engine's included. */
static void tasks(void)
{
    DIR *folder = opendir("/proc/self/task");
    CHECK(folder, "/proc/self/task");
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder));)
        count += entry->d_name[0] != '.';
    closedir(folder);
    printf("%d tasks\n", count);
}

/* Descriptors and what they are, without the one that lists them. */
static void descriptors(void)
{
    for (int fd = 0; fd < 256; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            printf("%d\n", fd);
}

/* Uses 96 MiB, then the same: the engine is at work when it looks. */
static void descriptors_while_swapping(void)
{
    char *p = map(48 * MIB);
    fill(p, 48 * MIB, 1);
    press(128);
    note_absent("absent", p, 48 * MIB);
    descriptors();
    VERIFY(p, 48 * MIB, 1, "after looking");
}

static volatile sig_atomic_t got;
static void on_signal(int signal) { got = signal; }

/* Prints the signal that arrived, and ends with 40 plus its number. */
static void waits_for_signal(void)
{
    int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT, SIGWINCH, SIGCONT};
    for (int i = 0; i < 8; i++)
        signal(signals[i], on_signal);
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < 400 && !got; i++)
        usleep(50000);
    printf("signal %d\n", got);
    fflush(stdout);
    _exit(40 + got);
}

/* How often Ctrl-C reached this process: once is right. */
static volatile sig_atomic_t interrupts;
static void on_interrupt(int signal) { (void)signal; interrupts++; }
static void counts_interrupts(void)
{
    signal(SIGINT, on_interrupt);
    printf("terminals %d%d%d, foreground %d\n", isatty(0), isatty(1), isatty(2), tcgetpgrp(0) == getpgrp());
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < 400 && !interrupts; i++)
        usleep(50000);
    usleep(300000);
    printf("%d interrupts\n", interrupts);
    fflush(stdout);
    _exit(42);
}

/* Waits for the file "go-on" in the working folder. */
static void waits_for_file(void)
{
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < 1000 && access("go-on", F_OK) != 0; i++)
        usleep(20000);
    printf("went on\n");
}

/* Swaps until it is ended from outside. */
static void swaps_for_ever(void)
{
    char *p = map(160 * MIB);
    for (uint64_t round = 0;; round++) {
        fill(p, 160 * MIB, round);
        VERIFY(p, 160 * MIB, round, "round");
        if (round == 0) {
            printf("ready\n");
            fflush(stdout);
        }
    }
}

static void swaps_once(void)
{
    char *p = map(160 * MIB);
    fill(p, 160 * MIB, 7);
    VERIFY(p, 160 * MIB, 7, "round");
}

/* Needs three times the limit, then dies by a null pointer. */
static void swaps_and_crashes(void)
{
    swaps_once();
    printf("about to crash\n");
    fflush(stdout);
    *(volatile int *)8 = 1;
}

static void fits(void)
{
    char *p = map(24 * MIB);
    for (int round = 0; round < 20; round++) {
        fill(p, 24 * MIB, round);
        VERIFY(p, 24 * MIB, round, "round");
    }
}

static const struct part parts[] = {
    {"tasks", tasks},
    {"descriptors", descriptors},
    {"descriptors_while_swapping", descriptors_while_swapping},
    {"waits_for_signal", waits_for_signal},
    {"counts_interrupts", counts_interrupts},
    {"waits_for_file", waits_for_file},
    {"swaps_for_ever", swaps_for_ever},
    {"swaps_once", swaps_once},
    {"swaps_and_crashes", swaps_and_crashes},
    {"fits", fits},
};

int main(int argc, char **argv)
{
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
