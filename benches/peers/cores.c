/* How far apart two cores are now: one writes 256 KiB that the other reads, in turns.
 *
 * prints how long the writer takes, the median in microseconds: memory that another core has in its cache takes
 * longer the further that core is. On a virtual machine this changes within seconds, as its host moves the virtual
 * processors between cores: 5 where they share a core, 28 where they share the last cache, 115 where they share
 * none (AMD EPYC 9004, 2026-11-24). Whatever crosses a loopback socket then takes as much longer. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 256 << 10, TURNS = 400 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int order(const void *a, const void *b) {
    double apart = *(const double *)a - *(const double *)b;
    return (apart > 0) - (apart < 0);
}

/* Keeps this process on the so manyth of the cores it may use; whether there are so many. */
static int stay_on(int wanted) {
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return 0;
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed) || wanted--) continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        return !sched_setaffinity(0, sizeof one, &one);
    }
    return 0;
}

int main(void) {
    static double took[TURNS];
    char *own = malloc(BYTES);
    char *shared = mmap(NULL, BYTES + sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!own || shared == MAP_FAILED) return 1;
    memset(own, 1, BYTES);
    atomic_int *turn = (atomic_int *)(shared + BYTES);
    pid_t reader = fork();
    if (reader < 0) return 1;
    if (!stay_on(reader ? 0 : 1)) {
        atomic_store(turn, -1);
        return 1;
    }
    for (int i = 0; i < TURNS; i++) {
        int seen;
        while ((seen = atomic_load(turn)) != 2 * i + !reader) {
            if (seen < 0) return 1;
        }
        double start = now();
        if (reader)
            memcpy(shared, own, BYTES);
        else
            memcpy(own, shared, BYTES);
        took[i] = now() - start;
        atomic_store(turn, seen + 1);
    }
    if (!reader) return 0;
    wait(NULL);
    qsort(took, TURNS, sizeof *took, order);
    printf("%.1f\n", took[TURNS / 2]);
    return 0;
}
