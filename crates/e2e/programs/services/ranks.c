/* ranks MEBIBYTES: each rank fills two private arrays of that size, which are exchanged by MPI_Alltoall and summed
 * up by MPI_Allreduce; rank 0 prints a digest of each rank's array after each round. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST_RANKS 64
/* Words that are read in any order, so that no rank reads all of its array at random. */
#define BLOCK 65536UL

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    size_t words = ((size_t)atoi(argv[1]) << 17) / BLOCK * BLOCK;
    uint64_t *a = malloc(words * 8), *b = malloc(words * 8), summed = 0;
    if (a == NULL || b == NULL || ranks > MOST_RANKS || words % ranks != 0)
        MPI_Abort(MPI_COMM_WORLD, 99);
    for (size_t i = 0; i < words; i++)
        a[i] = mix((uint64_t)rank << 40 | i);
    for (int round = 0; round < 3; round++) {
        MPI_Alltoall(a, words / ranks, MPI_UINT64_T, b, words / ranks, MPI_UINT64_T, MPI_COMM_WORLD);
        for (size_t i = 0; i < words; i++)
            a[i] = b[i] * 31 + a[i / BLOCK * BLOCK + i * 40503 % BLOCK];
        MPI_Allreduce(a, b, words / 4, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        for (size_t i = 0; i < words / 4; i++)
            summed = summed * 31 + b[i];
        uint64_t mine = 0, all[MOST_RANKS];
        for (size_t i = 0; i < words; i++)
            mine = mine * 31 + a[i];
        MPI_Gather(&mine, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
        for (int r = 0; rank == 0 && r < ranks; r++)
            printf("round %d rank %d holds %016lx, summed up %016lx\n", round, r, all[r], summed);
    }
    return MPI_Finalize();
}
