/*
 * The container program of Kang & Yu 2024, section 6.2: memory that comes and goes.
 *
 *     worker LIMIT_BYTES UNIT_BYTES ROUNDS WORK SEED [SLEEP_MS [PAGE_WORK]]
 *                                                the job; exit status 0 when all rounds are done
 *     worker once PEAK_BYTES WORK                grow to PEAK_BYTES once, work, give all of it back, work, end
 *     worker idle PERIOD_MS NOISE_BYTES SEED     do a little in every period, until SIGTERM
 *     worker measure WORK                        print the CPU time, in ns, of WORK iterations
 *     worker pause                               hold nothing and sleep, like a pod's sandbox
 *
 * The job always holds LIMIT/2, touched. In each round it allocates unit by unit, up to a random point between LIMIT/2
 * and LIMIT, touches every page, works for WORK iterations after each unit, and gives all of it back to the kernel.
 * WORK counts iterations, not time, so a slowed-down or paused job has as much left to do as any other. The same
 * arguments make the same sequence of allocations on every machine. With SLEEP_MS it sleeps that long after each unit, as
 * a job does that waits for a disk, a network or another pod.
 *
 * `once` grows in STEPS steps and works for WORK iterations after each, then for a quarter of that at the peak, and for
 * another quarter without its memory. `idle` prints a line, starts and reaps a child, reads a file and touches up to
 * NOISE_BYTES, which it gives back at once.
 *
 * A page costs PAGE_WORK / 5000 besides, or WORK / 5000 without it: a node with a hundredth of the memory must not be full
 * a hundred times as soon, for the daemon that watches it has not become quicker.
 *
 * "Never more than its limit" includes what the kernel charges to the job's cgroup besides: page tables (64 KiB for
 * 32 MiB), kernel stack and task (about 64 KiB), stack, heap and binary (under 200 KiB), and per-CPU batches of charges
 * (256 KiB each, taken back when a limit is near). OVERHEAD bytes below the limit are left for it.
 */
#define _GNU_SOURCE
#include "lab.h"
#include <inttypes.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OVERHEAD (1UL << 20)
#define PAGES_PER_WORK 5000
#define STEPS 24

static uint64_t random_state;

/* splitmix64 (Steele, Lea, Flood 2014): small, and good for any seed. */
static uint64_t next_random(void)
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/*
 * An iteration is 16 instructions that do nothing but take time. Where an emulator counts instructions, blocks of as many
 * as it translates at once cost it least of its own time: a quarter of what a loop that computes does (measured).
 */
static void work(uint64_t iterations)
{
    for (; iterations >= 25; iterations -= 25)
        __asm__ volatile(".rept 25 * 16\n\tnop\n\t.endr");
    for (; iterations; iterations--)
        __asm__ volatile(".rept 16\n\tnop\n\t.endr");
}

static void touch(char *start, size_t length, size_t page, uint64_t iterations)
{
    for (size_t at = 0; at < length; at += page) {
        ((volatile char *)start)[at] = 1;
        work(iterations / PAGES_PER_WORK);
    }
}

/* Without a handler a container's PID 1 would ignore SIGTERM. */
static void on_term(int number)
{
    _exit(128 + number);
}

static int measure(uint64_t iterations)
{
    struct timespec start, end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
    work(iterations);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    printf("%" PRId64 "\n", (int64_t)(end.tv_sec - start.tv_sec) * 1000000000 + (end.tv_nsec - start.tv_nsec));
    return 0;
}

/* "VmHWM:" of this process; getrusage would answer with the maximum of whoever called exec. */
static uint64_t peak_rss_bytes(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    if (!status)
        die("/proc/self/status");
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %llu", &kib) == 1)
            break;
    fclose(status);
    return kib * 1024;
}

/* Sleep that long in all, whatever interrupts it. */
static void rest(uint64_t ms)
{
    struct timespec left = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

static int once(size_t peak, uint64_t iterations)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), step = peak / STEPS / page * page;
    char *memory = reserve(STEPS * step + page);
    for (size_t number = 0; number < STEPS; number++) {
        touch(memory + number * step, step, page, iterations);
        work(iterations);
    }
    work(iterations * STEPS / 4);
    if (munmap(memory, STEPS * step + page))
        die("munmap");
    work(iterations * STEPS / 4);
    printf("peak_bytes=%zu rss_bytes=%" PRIu64 "\n", STEPS * step, peak_rss_bytes());
    return 0;
}

static _Noreturn void idle(uint64_t period_ms, size_t noise)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *memory = reserve(noise + page), buffer[4096];
    for (uint64_t turn = 0;; turn++) {
        size_t touched = next_random() % (noise / page + 1) * page;
        touch(memory, touched, page, 0);
        pid_t child = fork();
        if (child < 0)
            die("fork");
        if (!child)
            _exit(0);
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
            ;
        FILE *file = fopen("/proc/self/exe", "r");
        if (!file)
            die("/proc/self/exe");
        while (fread(buffer, 1, sizeof buffer, file) == sizeof buffer)
            ;
        fclose(file);
        printf("turn=%" PRIu64 " touched_bytes=%zu\n", turn, touched);
        if (fflush(stdout))
            exit(1);
        if (madvise(memory, noise + page, MADV_DONTNEED))
            die("madvise");
        rest(period_ms);
    }
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = on_term};
    sigaction(SIGTERM, &action, NULL);
    if (argc == 2 && !strcmp(argv[1], "pause")) {
        prctl(PR_SET_NAME, "pause"); /* the name of a real sandbox's only process */
        for (;;)
            pause();
    }
    if (argc == 3 && !strcmp(argv[1], "measure"))
        return measure(parse(argv[2], "WORK"));
    if (argc == 4 && !strcmp(argv[1], "once"))
        return once(parse(argv[2], "PEAK_BYTES"), parse(argv[3], "WORK"));
    if (argc == 5 && !strcmp(argv[1], "idle")) {
        random_state = parse(argv[4], "SEED");
        idle(parse(argv[2], "PERIOD_MS"), parse(argv[3], "NOISE_BYTES"));
    }
    if (argc < 6 || argc > 8) {
        fprintf(stderr, "usage: worker LIMIT_BYTES UNIT_BYTES ROUNDS WORK SEED [SLEEP_MS [PAGE_WORK]] | "
                        "once PEAK_BYTES WORK | idle PERIOD_MS NOISE_BYTES SEED | measure WORK | pause\n");
        return 2;
    }
    uint64_t limit = parse(argv[1], "LIMIT_BYTES"), unit = parse(argv[2], "UNIT_BYTES");
    uint64_t rounds = parse(argv[3], "ROUNDS"), iterations = parse(argv[4], "WORK");
    uint64_t sleep_ms = argc > 6 ? parse(argv[6], "SLEEP_MS") : 0;
    uint64_t page_work = argc > 7 ? parse(argv[7], "PAGE_WORK") : iterations;
    random_state = parse(argv[5], "SEED");
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (limit < 4 * OVERHEAD || unit < page) {
        fprintf(stderr, "worker: LIMIT_BYTES must be at least %lu and UNIT_BYTES %zu\n", 4 * OVERHEAD, page);
        return 2;
    }
    uint64_t hold = limit / 2 / page * page, most = (limit - OVERHEAD) / page * page - hold;
    char *memory = reserve(hold + most);
    touch(memory, hold, page, page_work);
    uint64_t units = 0, peak = 0, sum = 0;
    for (uint64_t round = 0; round < rounds; round++) {
        uint64_t target = next_random() % (most / page + 1) * page, held = 0;
        while (held < target) {
            uint64_t step = target - held < unit ? target - held : unit;
            touch(memory + hold + held, step, page, page_work);
            held += step;
            units++;
            work(iterations);
            if (sleep_ms)
                rest(sleep_ms);
        }
        if (held > peak)
            peak = held;
        sum = sum * 31 + target;
        if (held && madvise(memory + hold, held, MADV_DONTNEED))
            die("madvise");
    }
    printf("rounds=%" PRIu64 " units=%" PRIu64 " peak_bytes=%" PRIu64 " rss_bytes=%" PRIu64 " checksum=%" PRIx64 "\n",
           rounds, units, hold + peak, peak_rss_bytes(), sum);
    return 0;
}
