/* An array of four times the memory: filled, summed up, and freed. */
#include <foreswap.h>
#include <stdint.h>
#include <stdio.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, foreswap_error());
    return 1;
}

int main(void)
{
    const char *options[] = {"--memory=64M", NULL};
    if (foreswap_open(options) != 0)
        return failed("foreswap_open");

    size_t count = (256u << 20) / sizeof(uint64_t);
    uint64_t *array = foreswap_map(count * sizeof *array);
    if (array == NULL)
        return failed("foreswap_map");

    for (size_t i = 0; i < count; i++)
        array[i] = i;
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += array[i];
    printf("sum %llu, expected %llu\n", (unsigned long long)sum, (unsigned long long)(count * (count - 1) / 2));

    if (foreswap_unmap(array) != 0)
        return failed("foreswap_unmap");
    return sum != count * (count - 1) / 2;
}
