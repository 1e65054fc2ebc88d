/* The floor for one sampling tick: reads the files cgpause reads, through held descriptors, and parses what it parses.
 *
 * readloop FILE... : the first three are kubepods' memory.max, memory.current and memory.stat, the fourth /proc/meminfo,
 * the rest the pods' memory.current. Each line on stdin is a number of ticks; the answer is their time in ns.
 */
#define _GNU_SOURCE
#include "lab.h"
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

static char buffer[8192];

static ssize_t read_file(int fd)
{
    ssize_t n = pread(fd, buffer, sizeof buffer - 1, 0);
    if (n < 0)
        die("pread");
    buffer[n] = 0;
    return n;
}

static uint64_t number_after(const char *key)
{
    const char *at = strstr(buffer, key);
    if (!at) {
        fprintf(stderr, "no %s\n", key);
        exit(1);
    }
    return strtoull(at + strlen(key), NULL, 10);
}

static uint64_t tick(const int *fds, int count)
{
    uint64_t sum = 0;
    read_file(fds[0]);
    sum += strtoull(buffer, NULL, 10);
    read_file(fds[1]);
    sum += strtoull(buffer, NULL, 10);
    read_file(fds[2]);
    sum += number_after("\ninactive_file ") + number_after("\nactive_file ") + number_after("\nslab_reclaimable ");
    read_file(fds[3]);
    sum += number_after("MemTotal:") + number_after("MemAvailable:");
    for (int i = 4; i < count; i++) {
        read_file(fds[i]);
        sum += strtoull(buffer, NULL, 10);
    }
    return sum;
}

int main(int argc, char **argv)
{
    int count = argc - 1;
    int *fds = calloc((size_t)count, sizeof *fds);
    if (count < 4 || !fds) {
        fprintf(stderr, "usage: readloop MEMORY_MAX MEMORY_CURRENT MEMORY_STAT MEMINFO [MEMORY_CURRENT...]\n");
        return 2;
    }
    for (int i = 0; i < count; i++) {
        fds[i] = open(argv[i + 1], O_RDONLY | O_CLOEXEC);
        if (fds[i] < 0)
            die(argv[i + 1]);
    }
    char line[64];
    volatile uint64_t sink = 0;
    while (fgets(line, sizeof line, stdin)) {
        struct timespec start, end;
        long ticks = strtol(line, NULL, 10);
        clock_gettime(CLOCK_MONOTONIC, &start);
        for (long i = 0; i < ticks; i++)
            sink += tick(fds, count);
        clock_gettime(CLOCK_MONOTONIC, &end);
        printf("%lld\n", (end.tv_sec - start.tv_sec) * 1000000000LL + (end.tv_nsec - start.tv_nsec));
        fflush(stdout);
    }
    return 0;
}
