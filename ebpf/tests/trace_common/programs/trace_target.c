/*
 * Hits tracepoints as commands from standard input say, one command a line, and replies to each with a line of numbers: how
 * often it hit them, or what was asked for. Contents are functions of the command, so that the test knows them.
 */
#define _GNU_SOURCE
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SEMAPHORE(name) \
    __extension__ volatile unsigned short target_##name##_semaphore __attribute__((section(".probes"), used))
SEMAPHORE(number);
SEMAPHORE(text);
SEMAPHORE(bytes);
SEMAPHORE(payload);
SEMAPHORE(narrow);

#define NOINLINE __attribute__((noinline))
#define PAGE 4096

/* Two pages in the middle of half a megabyte of constants that nothing touches. */
#define UNTOUCHED_AT 262144
static const char constants[2 * UNTOUCHED_AT] __attribute__((aligned(PAGE))) = {
    [UNTOUCHED_AT + PAGE - 3] = 'n', 'e', 'v', 'e', 'r', ' ', 't', 'o', 'u', 'c', 'h', 'e', 'd'};

/* Two locations with different arguments. */
NOINLINE static void number(int64_t thread, int64_t value) { STAP_PROBE2(target, number, thread, value); }
NOINLINE static void constant(void) { STAP_PROBE2(target, number, (int64_t)-1, (int32_t)-7); }
NOINLINE static void text(int64_t id, const char *text) { STAP_PROBE2(target, text, id, text); }
NOINLINE static void bytes(const void *pointer, int32_t last) { STAP_PROBE2(target, bytes, pointer, last); }
NOINLINE static void payload(uint64_t size, const void *bytes) { STAP_PROBE2(target, payload, size, bytes); }
/* The pointer first, and the length signed and of 4 bytes. */
NOINLINE static void narrow(const void *bytes, int32_t size) { STAP_PROBE2(target, narrow, bytes, size); }

static uint8_t pattern(uint64_t seed, uint64_t at) { return (uint8_t)(at * 31 ^ (at >> 8) * 17 ^ (at >> 16) * 73 ^ seed * 57); }

static uint8_t *filled(uint64_t seed, size_t size) {
    uint8_t *memory = malloc(size + 1);
    if (!memory) abort();
    for (size_t at = 0; at < size; at++) memory[at] = pattern(seed, at);
    return memory;
}

/* `size` bytes that end where nothing can be read. */
static char *at_the_edge(size_t size) {
    size_t pages = (size + PAGE - 1) / PAGE * PAGE;
    char *memory = mmap(NULL, pages + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + pages, PAGE, PROT_NONE)) abort();
    for (size_t at = 0; at < size; at++) memory[pages - size + at] = (char)('a' + at % 26);
    return memory + pages - size;
}

/* Whether a page is in the page table of this process. */
static int is_present(const void *address) {
    uint64_t entry = 0;
    int fd = open("/proc/self/pagemap", O_RDONLY);
    if (pread(fd, &entry, sizeof entry, (off_t)((uintptr_t)address / PAGE * sizeof entry)) != sizeof entry) abort();
    close(fd);
    return (int)(entry >> 63);
}

struct thread { pthread_t id; long number, count; };

/* Each thread on a processor, in turn, wherever the scheduler would put it. */
static void *run(void *argument) {
    struct thread *thread = argument;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((int)(thread->number % sysconf(_SC_NPROCESSORS_ONLN)), &one);
    if (pthread_setaffinity_np(pthread_self(), sizeof one, &one)) abort();
    for (long i = 0; i < thread->count; i++) number(thread->number, i);
    return NULL;
}

static long threads(long count, long hits) {
    struct thread all[64] = {0};
    if (count > 64) abort();
    for (long i = 0; i < count; i++) {
        all[i] = (struct thread){.number = i, .count = hits};
        if (pthread_create(&all[i].id, NULL, run, &all[i])) abort();
    }
    for (long i = 0; i < count; i++) pthread_join(all[i].id, NULL);
    return count * hits;
}

/* A thread that hits a tracepoint, whose text is in a page that is not there until `release`. */
static struct { pthread_t thread; int faults; char *page; } held;

static void *hit_with_held_text(void *unused) {
    (void)unused;
    text(0, held.page);
    return NULL;
}

/* Returns when the page is waited for: by the tracer, which reads the text. */
static long hold(void) {
    struct uffdio_api api = {.api = UFFD_API};
    struct uffd_msg fault;
    held.faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    held.page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (held.faults < 0 || held.page == MAP_FAILED || ioctl(held.faults, UFFDIO_API, &api)) return -1;
    struct uffdio_register range = {{(uintptr_t)held.page, PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    if (ioctl(held.faults, UFFDIO_REGISTER, &range)) return -1;
    if (pthread_create(&held.thread, NULL, hit_with_held_text, NULL)) abort();
    if (read(held.faults, &fault, sizeof fault) != sizeof fault) abort();
    return fault.event == UFFD_EVENT_PAGEFAULT;
}

static long release(void) {
    static char content[PAGE] __attribute__((aligned(PAGE))) = "held";
    struct uffdio_copy copy = {.dst = (uintptr_t)held.page, .src = (uintptr_t)content, .len = PAGE};
    if (ioctl(held.faults, UFFDIO_COPY, &copy)) return -1;
    pthread_join(held.thread, NULL);
    close(held.faults);
    return 1;
}

static long execute(char *line, char **argv) {
    char name[32] = "";
    long a = 0, b = 0, c = 0;
    sscanf(line, "%31s %ld %ld %ld", name, &a, &b, &c);
    if (!strcmp(name, "numbers")) {
        for (long i = 0; i < a; i++) number(0, i);
        return a;
    }
    if (!strcmp(name, "constant")) {
        constant();
        return 1;
    }
    if (!strcmp(name, "threads")) return threads(a, b);
    if (!strcmp(name, "text")) { /* of a length, on the heap */
        char *memory = malloc(a + 1);
        for (long at = 0; at < a; at++) memory[at] = (char)('a' + at % 26);
        memory[a] = 0;
        text(a, memory);
        free(memory);
        return 1;
    }
    if (!strcmp(name, "text_at")) { /* at an address */
        text(0, (const char *)a);
        return 1;
    }
    if (!strcmp(name, "text_at_edge")) { /* without an end */
        text(0, at_the_edge(a));
        return 1;
    }
    if (!strcmp(name, "text_in_protected_page")) {
        text(0, at_the_edge(PAGE) + PAGE);
        return 1;
    }
    if (!strcmp(name, "untouched_text")) { /* over the boundary of two pages; says whether they were present */
        const char *at = constants + UNTOUCHED_AT + PAGE - 3;
        int present = is_present(at) + is_present(at + 3);
        text(0, at);
        return present;
    }
    if (!strcmp(name, "bytes")) { /* a number of 8 bytes, and 32 bytes */
        uint8_t *memory = filled(a, 32);
        bytes(memory, 5);
        free(memory);
        return 1;
    }
    if (!strcmp(name, "bytes_at")) {
        bytes((const void *)a, 5);
        return 1;
    }
    if (!strcmp(name, "payload")) { /* size, seed, count */
        uint8_t *memory = filled(b, a);
        for (long i = 0; i < c; i++) payload(a, memory);
        free(memory);
        return c;
    }
    if (!strcmp(name, "payload_lie")) { /* size that is said, size that is there */
        payload(a, at_the_edge(b));
        return 1;
    }
    if (!strcmp(name, "narrow")) {
        narrow(at_the_edge(100), (int32_t)a);
        return 1;
    }
    if (!strcmp(name, "semaphores"))
        return target_number_semaphore + 10 * target_text_semaphore + 100 * target_bytes_semaphore +
               1000 * target_payload_semaphore + 10000 * target_narrow_semaphore;
    if (!strcmp(name, "monotonic_ns")) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000 + now.tv_nsec;
    }
    if (!strcmp(name, "hold")) return hold();
    if (!strcmp(name, "release")) return release();
    if (!strcmp(name, "gettid")) return gettid();
    if (!strcmp(name, "exec")) execv(argv[0], argv);
    return strcmp(name, "ready") ? -1 : 0;
}

int main(int argc, char **argv) {
    char *line = NULL;
    size_t capacity = 0;
    (void)argc;
    /* Unbuffered: `exec` leaves the commands after it to the program that it executes. */
    setvbuf(stdin, NULL, _IONBF, 0);
    while (getline(&line, &capacity, stdin) > 0) {
        printf("%ld\n", execute(line, argv));
        fflush(stdout);
    }
    return 0;
}
