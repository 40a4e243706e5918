/* One contestant of the comparison: a collective of MPI, of float32, reduced by sums.
 *
 *   collectives COLLECTIVE BYTES ITERATIONS WARMUP
 *
 * prints, on rank 0, the time of each iteration in microseconds: the slowest rank's time of one call after a
 * barrier. BYTES are those of the whole vector, rounded down to whole elements per block where there is a block
 * for every rank. A wrong result of the first call ends the program with a message. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum collective { ALL_REDUCE, ALL_GATHER, BROADCAST, REDUCE_SCATTER, ALL_TO_ALL, UNKNOWN };
static const char *const names[] = {"all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all"};

static int rank, size, whole, block; /* the vector's elements, and those of a rank's block */

static void fail(const char *what) {
    fprintf(stderr, "collectives: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1); /* MPICH's comes back. */
}

/* Small numbers, so that sums are exact; no two ranks or blocks look alike. */
static float value(int of, long index) { return (float)((index * 7 + of * 31) % 97); }

static float sum(long index) {
    float all = 0;
    for (int r = 0; r < size; r++) all += value(r, index);
    return all;
}

static void call(enum collective what, const float *in, float *out) {
    switch (what) {
    case ALL_REDUCE: MPI_Allreduce(in, out, whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALL_GATHER: MPI_Allgather(in, block, MPI_FLOAT, out, block, MPI_FLOAT, MPI_COMM_WORLD); break;
    case BROADCAST: MPI_Bcast(out, whole, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(in, out, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALL_TO_ALL: MPI_Alltoall(in, block, MPI_FLOAT, out, block, MPI_FLOAT, MPI_COMM_WORLD); break;
    case UNKNOWN: fail("there is no such collective");
    }
}

/* What element `index` of this rank's output must be. */
static float wanted(enum collective what, long index) {
    switch (what) {
    case ALL_REDUCE: return sum(index);
    case ALL_GATHER: return value((int)(index / block), index % block);
    case BROADCAST: return value(0, index);
    case REDUCE_SCATTER: return sum((long)rank * block + index);
    case ALL_TO_ALL: return value((int)(index / block), (long)rank * block + index % block);
    case UNKNOWN: break;
    }
    return -1;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 5) fail("usage: collectives COLLECTIVE BYTES ITERATIONS WARMUP");
    enum collective what = ALL_REDUCE;
    while (what < UNKNOWN && strcmp(argv[1], names[what]) != 0) what++;
    int count = atoi(argv[2]) / (int)sizeof(float), iterations = atoi(argv[3]), warmup = atoi(argv[4]);
    int blocks = what == ALL_REDUCE || what == BROADCAST ? 1 : size;
    block = count / blocks;
    whole = block * blocks;
    if (block < 1 || iterations < 1 || warmup < 0) fail("a number has no sense");

    float *in = malloc(whole * sizeof *in), *out = malloc(whole * sizeof *out);
    double *times = calloc(iterations, sizeof *times), *slowest = calloc(iterations, sizeof *slowest);
    if (!in || !out || !times || !slowest) fail("out of memory");
    for (int i = 0; i < whole; i++) {
        in[i] = value(rank, i);
        out[i] = what == BROADCAST && rank == 0 ? in[i] : -1;
    }
    call(what, in, out);
    for (int i = 0; i < (what == REDUCE_SCATTER ? block : whole); i++)
        if (out[i] != wanted(what, i)) fail("wrong result");

    for (int k = -warmup; k < iterations; k++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        call(what, in, out);
        if (k >= 0) times[k] = (MPI_Wtime() - begin) * 1e6;
    }
    MPI_Reduce(times, slowest, iterations, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    for (int k = 0; rank == 0 && k < iterations; k++) printf("%.3f\n", slowest[k]);
    MPI_Finalize();
    return 0;
}
