/* hot_and_cold HOT COLD STOPFILE: fills COLD and HOT mebibytes, says "ready", and reads and writes the hot ones, a page
 * at random places, until STOPFILE exists. Then it verifies all. With SIGUSR1 it goes around the cold ones, too. */
#include "check.h"

static volatile sig_atomic_t all;
static void on_usr1(int signal)
{
    (void)signal;
    all = !all;
}

int main(int argc, char **argv)
{
    CHECK(argc > 3, "HOT COLD STOPFILE");
    size_t hot = strtoul(argv[1], NULL, 10) * MIB, cold = strtoul(argv[2], NULL, 10) * MIB;
    size_t pages = (hot + cold) / PAGE, first = cold / PAGE;
    char *p = map(hot + cold);
    signal(SIGUSR1, on_usr1);
    for (size_t i = 0; i < pages; i++)
        fill(p + i * PAGE, PAGE, i);
    printf("ready\n");
    fflush(stdout);
    uint64_t state = 1, touches = 0;
    while (touches % 4096 || access(argv[3], F_OK) != 0) {
        state = mix(state);
        size_t i = all ? state % pages : first + state % (pages - first);
        volatile uint64_t *word = (volatile uint64_t *)(p + i * PAGE) + state / pages % (PAGE / 8);
        uint64_t value = *word;
        *word = value;
        touches++;
    }
    for (size_t i = 0; i < pages; i++)
        VERIFY(p + i * PAGE, PAGE, i, "page");
    printf("all right after %lu million touches\n", touches >> 20);
    return 0;
}
