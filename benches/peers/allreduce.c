/* One contestant of the comparison: MPI_Allreduce of float32 sums.
 *
 *   allreduce BYTES ITERATIONS WARMUP
 *
 * prints, on rank 0, the time of each iteration in microseconds: the slowest rank's time of one call after a
 * barrier. A wrong sum ends the program with a message. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void fail(const char *what) {
    fprintf(stderr, "allreduce: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 4) fail("usage: allreduce BYTES ITERATIONS WARMUP");
    int count = atoi(argv[1]) / (int)sizeof(float), iterations = atoi(argv[2]), warmup = atoi(argv[3]);
    if (count < 1 || iterations < 1 || warmup < 0) fail("a number has no sense");
    float *in = malloc(count * sizeof *in), *out = malloc(count * sizeof *out);
    double *times = calloc(iterations, sizeof *times), *slowest = calloc(iterations, sizeof *slowest);
    if (!in || !out || !times || !slowest) fail("out of memory");
    for (int i = 0; i < count; i++) in[i] = (float)((i + rank) % 97);
    for (int k = -warmup; k < iterations; k++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (k >= 0) times[k] = (MPI_Wtime() - begin) * 1e6;
    }
    for (int i = 0; i < count; i++) {
        float wanted = 0;
        for (int r = 0; r < size; r++) wanted += (float)((i + r) % 97);
        if (out[i] != wanted) fail("wrong sum");
    }
    MPI_Reduce(times, slowest, iterations, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    for (int k = 0; rank == 0 && k < iterations; k++) printf("%.3f\n", slowest[k]);
    MPI_Finalize();
    return 0;
}
