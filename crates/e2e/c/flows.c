/* Reads the counters of received bytes of interfaces, about once a millisecond, until SIGTERM. Usage:
 * flows INTERFACE...
 * SIGUSR1 ends a phase, and SIGTERM ends the last. Of each phase it writes, when all has ended, the longest time
 * without traffic and the bytes by interface; then the bytes of each BIN, for a plot. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { LINKS = 8, PHASES = 64, BINS = 4096 };
/* Nanoseconds: between two readings, and of a bin. */
#define INTERVAL 500000L
#define BIN 50000000L
/* Fewer bytes than this are probes and acknowledgements, not traffic. */
#define LEAST 8192

static volatile sig_atomic_t ended, phases_ended;

static void on_signal(int number) {
    if (number == SIGTERM)
        ended = 1;
    else
        phases_ended++;
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static uint64_t counter(int fd) {
    char text[32] = {0};
    if (pread(fd, text, sizeof text - 1, 0) < 0) {
        perror("reading a counter");
        exit(1);
    }
    return strtoull(text, NULL, 10);
}

struct phase {
    int64_t gap, begin, end;
    uint64_t bytes[LINKS];
};

int main(int count, char **names) {
    static struct phase phases[PHASES];
    static uint64_t bins[BINS];
    int fds[LINKS], links = count - 1, phase = 0;
    uint64_t first[LINKS], at[LINKS], marked = 0, binned = 0;
    if (links < 1 || links > LINKS)
        return 2;
    for (int link = 0; link < links; link++) {
        char path[128];
        snprintf(path, sizeof path, "/sys/class/net/%s/statistics/rx_bytes", names[link + 1]);
        fds[link] = open(path, O_RDONLY | O_CLOEXEC);
        if (fds[link] < 0) {
            perror(path);
            return 1;
        }
        at[link] = first[link] = counter(fds[link]);
        marked += first[link];
    }
    binned = marked;
    signal(SIGTERM, on_signal);
    signal(SIGUSR1, on_signal);
    /* Whoever waits for a processor among polling programs sees gaps where there are none. */
    struct sched_param least = {.sched_priority = 1};
    sched_setscheduler(0, SCHED_FIFO, &least);
    int64_t start = now(), last = start, time = start;
    phases[0].begin = start;
    while (!ended) {
        struct timespec pause = {.tv_nsec = INTERVAL};
        nanosleep(&pause, NULL);
        uint64_t sum = 0;
        for (int link = 0; link < links; link++)
            sum += at[link] = counter(fds[link]);
        time = now();
        int64_t bin = (time - start) / BIN;
        if (bin < BINS)
            bins[bin] += sum - binned;
        binned = sum;
        /* A gap belongs to the phase in which it began. */
        int began = phase;
        while (began > 0 && last < phases[began].begin)
            began--;
        if (sum - marked >= LEAST) {
            if (time - last > phases[began].gap)
                phases[began].gap = time - last;
            marked = sum;
            last = time;
        }
        if (phases_ended > phase && phase + 1 < PHASES) {
            phases[phase].end = time;
            for (int link = 0; link < links; link++) {
                phases[phase].bytes[link] = at[link] - first[link];
                first[link] = at[link];
            }
            phases[++phase].begin = time;
        }
    }
    /* If traffic has not come back, that is a gap as well. */
    for (int i = phase; i >= 0; i--) {
        if (last >= phases[i].begin) {
            if (time - last > phases[i].gap)
                phases[i].gap = time - last;
            break;
        }
    }
    phases[phase].end = time;
    for (int link = 0; link < links; link++)
        phases[phase].bytes[link] = at[link] - first[link];
    for (int i = 0; i <= phase; i++) {
        printf("phase %lld %lld gap %lld bytes", (long long)(phases[i].begin - start) / 1000,
               (long long)(phases[i].end - start) / 1000, (long long)phases[i].gap / 1000);
        for (int link = 0; link < links; link++)
            printf(" %llu", (unsigned long long)phases[i].bytes[link]);
        printf("\n");
    }
    printf("bins");
    for (int64_t bin = 0; bin < BINS && bin <= (time - start) / BIN; bin++)
        printf(" %llu", (unsigned long long)bins[bin]);
    printf("\n");
    return 0;
}
