/* Two processes of MPI: messages of many sizes, reductions and one-sided access, all of it checked.
 *
 *     mpi [SECONDS]     repeats for this time; without an argument, runs once
 *
 * The last line of rank 0 is "mpi: N rounds are right". */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, peer;

static void fail(const char *what, long round, long at)
{
    fprintf(stderr, "mpi: rank %d: %s is wrong in round %ld at %ld\n", rank, what, round, at);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The value that the process of this rank sends at this index in this round. */
static uint8_t byte_of(int from, long round, long at)
{
    uint64_t x = (uint64_t)at * 0x9e3779b97f4a7c15u + (uint64_t)round * 31 + (uint64_t)from;
    return (uint8_t)(x >> 56 ^ x >> 13);
}

static void fill(uint8_t *data, long length, long round)
{
    for (long i = 0; i < length; i++)
        data[i] = byte_of(rank, round, i);
}

static void check(const uint8_t *data, long length, long round, const char *what)
{
    for (long i = 0; i < length; i++)
        if (data[i] != byte_of(peer, round, i))
            fail(what, round, i);
}

#define LONGEST (1 << 20)
static uint8_t out[LONGEST], in[LONGEST];

static void messages(long round)
{
    static const int lengths[] = { 0, 1, 8, 1000, 4096, 8193, 65536, 300001, LONGEST };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        MPI_Status status;
        int length;
        fill(out, lengths[i], round);
        memset(in, 0, sizeof in);
        MPI_Sendrecv(out, lengths[i], MPI_BYTE, peer, i, in, lengths[i], MPI_BYTE, peer, i,
                     MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &length);
        if (length != lengths[i])
            fail("a length", round, length);
        check(in, lengths[i], round, "a message");
    }
}

static void reductions(long round)
{
    long mine[1000], sum[1000];
    for (long i = 0; i < 1000; i++)
        mine[i] = (rank + 1) * (round + i);
    MPI_Allreduce(mine, sum, 1000, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (long i = 0; i < 1000; i++)
        if (sum[i] != 3 * (round + i))
            fail("a sum", round, i);
}

static void windows(long round, MPI_Win window, uint8_t *shared)
{
    enum { SIZE = 10000, COUNTER = 16384 };
    fill(out, SIZE, round);
    MPI_Win_fence(0, window);
    MPI_Put(out, SIZE, MPI_BYTE, peer, 0, SIZE, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    check(shared, SIZE, round, "what was put");
    MPI_Win_fence(0, window);
    MPI_Get(in, SIZE, MPI_BYTE, peer, 0, SIZE, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    if (memcmp(in, out, SIZE))
        fail("what was got", round, 0);
    long one = 1, before;
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, COUNTER, MPI_SUM, window);
    MPI_Win_unlock(0, window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    MPI_Get(&before, 1, MPI_LONG, 0, COUNTER, 1, MPI_LONG, window);
    MPI_Win_unlock(0, window);
    MPI_Barrier(MPI_COMM_WORLD);
    if (before != 2 * (round + 1))
        fail("a counter", round, before);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 0;
    int size, more;
    long round = 0;
    uint8_t *shared;
    MPI_Win window;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    peer = 1 - rank;
    if (size != 2)
        fail("the number of processes", 0, size);
    MPI_Win_allocate(32768, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &shared, &window);
    memset(shared, 0, 32768);
    MPI_Barrier(MPI_COMM_WORLD);
    double end = MPI_Wtime() + seconds;
    do {
        messages(round);
        reductions(round);
        windows(round, window, shared);
        round++;
        if (rank == 0 && round == 1) {
            printf("mpi: the first round is right\n");
            fflush(stdout);
        }
        more = MPI_Wtime() < end;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    } while (more);
    MPI_Win_free(&window);
    MPI_Finalize();
    if (rank == 0)
        printf("mpi: %ld rounds are right\n", round);
    return 0;
}
