/*
 * Hits a tracepoint with 3 numbers, then one with 6 arguments of which 3 are strings, and prints the nanoseconds per hit.
 * With a second argument it waits until a tracer has attached to both.
 */
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

__extension__ volatile unsigned short cost_numbers_semaphore __attribute__((section(".probes"), used));
__extension__ volatile unsigned short cost_message_semaphore __attribute__((section(".probes"), used));

struct message {
    int64_t peer;
    char *address, *connection, *type;
    uint64_t size;
    const void *bytes;
};

__attribute__((noinline)) static void numbers(int32_t a, int8_t b, uint64_t c) {
    if (__builtin_expect(cost_numbers_semaphore, 0)) STAP_PROBE3(cost, numbers, a, b, c);
}

__attribute__((noinline)) static void message(const struct message *m) {
    if (__builtin_expect(cost_message_semaphore, 0))
        STAP_PROBE6(cost, message, m->peer, m->address, m->connection, m->type, m->size, m->bytes);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(int argc, char **argv) {
    int hits = argc > 1 ? atoi(argv[1]) : 300000;
    struct message m = {0, strdup("203.0.113.7:8333"), strdup("outbound-full-relay"), strdup("inv"), 37, malloc(64)};
    for (int ms = 0; argc > 2 && !(cost_numbers_semaphore && cost_message_semaphore); ms++) {
        if (ms == 60000) return 1;
        usleep(1000);
    }
    double begin = now();
    for (int i = 0; i < hits; i++) numbers(-i, -3, (uint64_t)i);
    double middle = now();
    for (int i = 0; i < hits; i++) {
        m.peer = i;
        message(&m);
    }
    printf("%.1f %.1f\n", (middle - begin) / hits, (now() - middle) / hits);
    return 0;
}
