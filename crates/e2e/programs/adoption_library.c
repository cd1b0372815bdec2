/* A library with a large static array. */
#include <stddef.h>
#include <stdint.h>

#define MIB (1UL << 20)

static uint64_t array[20 * MIB];

/* Not the array itself: the linker would place it in the program. */
void *library_array(size_t *bytes)
{
    *bytes = sizeof array;
    return array;
}
