// Touches its memory at random, checks and changes each page: thrash MIB TOUCHES [FILE]. Prints a sum; appends a line to FILE.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    uint64_t pages = strtoull(argv[1], 0, 10) * 256, touches = strtoull(argv[2], 0, 10);
    uint64_t *memory = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 3;
    uint32_t *expected = calloc(pages, sizeof *expected);
    for (uint64_t page = 0; page < pages; page++)
        memory[page * 512] = page, memory[page * 512 + 511] = ~page;
    uint64_t random = 88172645463325252u, sum = 0;
    for (uint64_t n = 0; n < touches; n++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        uint64_t page = random % pages, *words = memory + page * 512;
        if (words[0] != page + expected[page] || words[511] != ~page) {
            fprintf(stderr, "page %lu is wrong\n", page);
            return 1;
        }
        words[0]++, expected[page]++;
        for (int i = 0; i < 3000; i++)
            sum = sum * 31 + words[0];
    }
    printf("%lu\n", sum);
    if (argc > 3) {
        FILE *file = fopen(argv[3], "a");
        fprintf(file, "%lu\n", sum);
        fclose(file);
    }
    return 0;
}
