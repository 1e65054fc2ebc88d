/*
 * A small service, and a prober like kubelet's, for the lab's pods.
 *
 *     service serve PORT HOLD_BYTES SWING_BYTES STEP_MS           answer HTTP on 127.0.0.1:PORT, until SIGTERM
 *     service probe KIND PORT DELAY_MS PERIOD_MS TIMEOUT_MS       ask it for ever, and print one line per probe
 *
 * Both expect to be in the pod's network namespace already (nsenter, as a runtime and kubelet's node reach it); `serve`
 * brings its loopback up. The service always holds HOLD_BYTES, touched, and every STEP_MS takes 1 MiB more, until it has
 * SWING_BYTES; then it gives them back and starts again. One thread does that and answers, so what slows one slows both.
 *
 * The prober follows pkg/probe/http, pkg/probe/tcp and pkg/kubelet/prober of kubelet: a connection of its own for each
 * probe, success when a status of 200 to 399 (KIND `http`) or the connection itself (`tcp`) came within TIMEOUT_MS,
 * probes on a fixed grid of PERIOD_MS (Go's ticker: a probe that is still under way at the next tick lets that tick
 * pass). It prints `answered USEC` or `missed USEC`.
 */
#define _GNU_SOURCE
#include "lab.h"
#include <arpa/inet.h>
#include <inttypes.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define STEP_BYTES (1UL << 20)
#define CLIENT_MS 1000 /* longest wait for a client's request: one that sends nothing must not stop the service */

/* Without a handler a container's PID 1 would ignore SIGTERM. */
static void on_term(int number)
{
    (void)number;
    _exit(0);
}

static int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Whether `events` came before `until_us`. */
static bool await(int fd, short events, int64_t until_us)
{
    for (;;) {
        int64_t left_us = until_us - now_us();
        struct pollfd one = {.fd = fd, .events = events};
        int ready = poll(&one, 1, left_us > 0 ? (int)((left_us + 999) / 1000) : 0);
        if (ready > 0)
            return true;
        if (ready < 0 && errno != EINTR)
            die("poll");
        if (left_us <= 0)
            return false;
    }
}

static struct sockaddr_in address(uint64_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void bring_loopback_up(int fd)
{
    struct ifreq request = {.ifr_name = "lo"};
    if (ioctl(fd, SIOCGIFFLAGS, &request))
        die("SIOCGIFFLAGS lo");
    request.ifr_flags |= IFF_UP;
    if (ioctl(fd, SIOCSIFFLAGS, &request))
        die("SIOCSIFFLAGS lo");
}

static void answer(int listener)
{
    static const char OK[] = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n";
    int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (client < 0)
        return; /* it has given up meanwhile */
    char request[4096];
    if (await(client, POLLIN, now_us() + CLIENT_MS * 1000) && recv(client, request, sizeof request, 0) > 0)
        (void)send(client, OK, sizeof OK - 1, MSG_NOSIGNAL);
    close(client);
}

static _Noreturn void serve(uint64_t port, size_t hold, size_t swing, uint64_t step_ms)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    if (listener < 0)
        die("socket");
    bring_loopback_up(listener);
    struct sockaddr_in here = address(port);
    if (setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) ||
        bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 128))
        die("listen");
    char *memory = reserve(hold + swing);
    memset(memory, 1, hold);
    size_t held = 0;
    int64_t next_us = now_us();
    for (;;) {
        if (await(listener, POLLIN, next_us)) {
            answer(listener);
            continue;
        }
        if (held == swing) {
            if (swing && madvise(memory + hold, swing, MADV_DONTNEED))
                die("madvise");
            held = 0;
        } else {
            size_t step = swing - held < STEP_BYTES ? swing - held : STEP_BYTES;
            memset(memory + hold + held, 1, step);
            held += step;
        }
        next_us = now_us() + (int64_t)step_ms * 1000; /* from here: what was missed in a pause is not made up for */
    }
}

static bool get(int fd, int64_t until_us)
{
    static const char REQUEST[] =
        "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: kube-probe/1.32\r\nConnection: close\r\n\r\n";
    char reply[64] = "";
    int status = 0;
    /* An answer of so few bytes comes whole. */
    if (send(fd, REQUEST, sizeof REQUEST - 1, MSG_NOSIGNAL) > 0 && await(fd, POLLIN, until_us) &&
        recv(fd, reply, sizeof reply - 1, 0) > 0)
        sscanf(reply, "HTTP/1.%*d %d", &status);
    return status >= 200 && status < 400;
}

static bool ask(uint64_t port, bool http, int64_t until_us)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die("socket");
    struct sockaddr_in there = address(port);
    int error = 0;
    socklen_t size = sizeof error;
    bool answered = (!connect(fd, (struct sockaddr *)&there, sizeof there) || errno == EINPROGRESS) &&
                    await(fd, POLLOUT, until_us) && !getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) && !error &&
                    (!http || get(fd, until_us));
    close(fd);
    return answered;
}

static _Noreturn void probe(uint64_t port, bool http, int64_t delay_us, int64_t period_us, int64_t timeout_us)
{
    int64_t next_us = now_us() + delay_us;
    for (;;) {
        int64_t left_us = next_us - now_us();
        if (left_us > 0)
            usleep((useconds_t)left_us);
        int64_t start_us = now_us();
        bool answered = ask(port, http, start_us + timeout_us);
        int64_t took_us = now_us() - start_us;
        printf("%s %" PRId64 "\n", answered ? "answered" : "missed", took_us);
        if (fflush(stdout))
            exit(1); /* nobody listens any more */
        do
            next_us += period_us;
        while (next_us < now_us());
    }
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = on_term};
    sigaction(SIGTERM, &action, NULL);
    if (argc == 6 && !strcmp(argv[1], "serve"))
        serve(parse(argv[2], "PORT"), parse(argv[3], "HOLD_BYTES"), parse(argv[4], "SWING_BYTES"),
              parse(argv[5], "STEP_MS"));
    bool http = argc == 7 && !strcmp(argv[2], "http");
    if (argc == 7 && !strcmp(argv[1], "probe") && (http || !strcmp(argv[2], "tcp"))) {
        int64_t period_us = (int64_t)parse(argv[5], "PERIOD_MS") * 1000;
        if (period_us < 1)
            return fputs("service: PERIOD_MS must be at least 1\n", stderr), 2;
        probe(parse(argv[3], "PORT"), http, (int64_t)parse(argv[4], "DELAY_MS") * 1000, period_us,
              (int64_t)parse(argv[6], "TIMEOUT_MS") * 1000);
    }
    fputs("usage: service serve PORT HOLD_BYTES SWING_BYTES STEP_MS | probe http|tcp PORT DELAY_MS PERIOD_MS TIMEOUT_MS\n",
          stderr);
    return 2;
}
