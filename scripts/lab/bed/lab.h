/* What the lab's programs share; include it after defining _GNU_SOURCE. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static inline void die(const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
    exit(1);
}

static inline uint64_t parse(const char *text, const char *name)
{
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno || end == text || *end || text[0] == '-') {
        fprintf(stderr, "%s: %s: not a number: %s\n", program_invocation_short_name, name, text);
        exit(2);
    }
    return value;
}

/* Address space for `bytes`, of which no page is there yet. */
static inline char *reserve(size_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    /* A huge page would take 2 MiB where one page was touched. EINVAL: this kernel has none. */
    if (madvise(memory, bytes, MADV_NOHUGEPAGE) && errno != EINVAL)
        die("madvise");
    return memory;
}
