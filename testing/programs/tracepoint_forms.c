/*
 * Tracepoints whose arguments are of every form: registers of all widths, memory with displacement, index and scale,
 * constants, variables, floating point, none, twelve. With -DSEMAPHORES each has a semaphore, which begins with 4660 as if
 * tracers were attached. Fires all of them, prints "ready" and waits for the end of its input.
 */
#ifdef SEMAPHORES
#define _SDT_HAS_SEMAPHORES 1
#endif
#include <sys/sdt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#ifdef SEMAPHORES
#define SEMAPHORE(name) __extension__ unsigned short forms_##name##_semaphore __attribute__((section(".probes"))) = 4660
#else
#define SEMAPHORE(name) extern int forms_##name##_no_semaphore
#endif

SEMAPHORE(none);
SEMAPHORE(widths);
SEMAPHORE(constants);
SEMAPHORE(indexed);
SEMAPHORE(variables);
SEMAPHORE(floats);
SEMAPHORE(stack);
SEMAPHORE(twelve);
SEMAPHORE(unrolled);
SEMAPHORE(inlined);

int64_t variable = 11;
struct { int32_t first; int32_t second; } pair = {1, 2};

#define NOINLINE __attribute__((noinline))

NOINLINE void none(void) { STAP_PROBE(forms, none); }

NOINLINE void widths(int8_t a, uint8_t b, int16_t c, uint16_t d, int32_t e, uint32_t f, int64_t g, uint64_t h, bool i) {
    STAP_PROBE9(forms, widths, a, b, c, d, e, f, g, h, i);
}

NOINLINE void constants(void) {
    STAP_PROBE6(forms, constants, (int64_t)-7, (uint64_t)100000, true, (uint64_t)-1, (int8_t)-1, (int32_t)0);
}

NOINLINE void indexed(const int32_t *numbers, const int64_t *longs, const int8_t *bytes, long i) {
    STAP_PROBE4(forms, indexed, numbers[i], numbers[i + 1], longs[i - 1], bytes[i]);
}

NOINLINE void variables(void) { STAP_PROBE3(forms, variables, variable, pair.second, &variable); }

NOINLINE void floats(double a, float b, const double *c) { STAP_PROBE3(forms, floats, a, b, c[1]); }

NOINLINE void stack(const char *text) {
    char local[200];
    snprintf(local, sizeof local, "%s", text);
    STAP_PROBE3(forms, stack, local, text, local[3]);
}

NOINLINE void twelve(long a) {
    STAP_PROBE12(forms, twelve, a, a + 1, a + 2, a + 3, a + 4, a + 5, a + 6, a + 7, a + 8, a + 9, a + 10, a + 11);
}

NOINLINE void unrolled(int n) {
    for (int i = 0; i < 4; i++) STAP_PROBE2(forms, unrolled, i, n);
}

static inline __attribute__((always_inline)) void inlined(long a, int b) { STAP_PROBE2(forms, inlined, a, b); }

NOINLINE void inline_here(long a) { inlined(a, 1); }
NOINLINE void inline_there(const long *a) { inlined(a[2], (int)a[0]); }

int main(int argc, char **argv) {
    int32_t numbers[] = {1, 2, 3, 4};
    int64_t longs[] = {1, 2, 3, 4};
    int8_t bytes[] = {1, 2, 3, 4};
    double doubles[] = {1.5, 2.5};
    none();
    widths(-1, 1, -2, 2, -4, 4, -8, 8, argc > 0);
    constants();
    indexed(numbers, longs, bytes, argc);
    variables();
    floats(argc, 2.0f, doubles);
    stack(argv[0]);
    twelve(argc);
    unrolled(argc);
    inline_here(argc);
    inline_there(longs);
    puts("ready");
    fflush(stdout);
    char rest[64];
    while (read(0, rest, sizeof rest) > 0) {}
    return 0;
}
