/* Calls the kernel directly for all its memory, from the first byte on. With ALONE it needs no library at all, as
 * Go links programs. */
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

#define MIB (1UL << 20)
#define CHUNK (4 * MIB)
enum { CHUNKS = 64 };

static long ask(long number, long a, long b, long c, long d, long e)
{
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = 0;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static uint64_t word(uint64_t seed, uint64_t i)
{
    return (seed * 0x9e3779b97f4a7c15ULL ^ i) * 0xd6e8feb86659fd93ULL + i;
}

static char *put_number(char *to, uint64_t number)
{
    char digits[20];
    int n = 0;
    do
        digits[n++] = '0' + number % 10;
    while (number /= 10);
    while (n)
        *to++ = digits[--n];
    return to;
}

/* "TEXT NUMBER", on a line. */
static void say(int file, const char *text, uint64_t number)
{
    char line[80], *to = line;
    while (*text)
        *to++ = *text++;
    to = put_number(to, number);
    *to++ = '\n';
    ask(SYS_write, file, (long)line, to - line, 0, 0);
}

static int work(void)
{
    uint64_t *chunks[CHUNKS], wrong = 0;
    for (uint64_t i = 0; i < CHUNKS; i++) {
        long flags = MAP_PRIVATE | MAP_ANONYMOUS;
        chunks[i] = (uint64_t *)ask(SYS_mmap, 0, CHUNK, PROT_READ | PROT_WRITE, flags, -1);
        for (uint64_t at = 0; at < CHUNK / 8; at++)
            chunks[i][at] = word(i, at);
        struct timespec pause = {.tv_nsec = 30000000};
        ask(SYS_nanosleep, (long)&pause, 0, 0, 0, 0);
    }
    for (uint64_t i = 0; i < CHUNKS; i++)
        for (uint64_t at = 0; at < CHUNK / 8; at++)
            wrong += chunks[i][at] != word(i, at);
    say(1, "words that are wrong: ", wrong);
    struct rusage usage;
    ask(SYS_getrusage, RUSAGE_SELF, (long)&usage, 0, 0, 0);
    say(2, "note peak_kib ", usage.ru_maxrss);
    return wrong != 0;
}

#ifdef ALONE
__attribute__((force_align_arg_pointer)) void _start(void)
{
    ask(SYS_exit_group, work(), 0, 0, 0, 0);
}
#else
int main(void)
{
    return work();
}
#endif
