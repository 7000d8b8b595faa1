// Allocates pages at a given stack depth and frees them; prints the processor time per page in nanoseconds: best round
// and median.
//
// faults DEPTH same|vary mmap|malloc PAGES ROUNDS
//
// same: every page is allocated under the same calls. vary: each level calls one of two functions, in one of 64 patterns
// chosen per page, so that frames differ between pages.
// Built without frame pointers. Frames have different sizes and contain data.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <vector>

#define NOINLINE __attribute__((noinline, noclone))

static double now() {
    timespec time;
    // Processor time of this process, which excludes other load.
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static bool uses_malloc;

// Touches the page, or allocates it by malloc first.
NOINLINE void leaf(char **page) {
    if (uses_malloc) *page = static_cast<char *>(malloc(4096));
    *static_cast<volatile char *>(*page) = 1;
    asm volatile("" ::: "memory");
}

NOINLINE void left(unsigned depth, unsigned choice, char **page);
NOINLINE void right(unsigned depth, unsigned choice, char **page);

static inline __attribute__((always_inline)) void below(unsigned depth, unsigned choice, char **page) {
    if (depth == 0) leaf(page);
    else if (choice & 1) left(depth - 1, choice >> 1, page);
    else right(depth - 1, choice >> 1, page);
}

NOINLINE void left(unsigned depth, unsigned choice, char **page) {
    volatile char local[24];
    local[depth % 24] = 1;
    below(depth, choice, page);
    (void)local[depth % 24];
}

NOINLINE void right(unsigned depth, unsigned choice, char **page) {
    volatile char local[120];
    local[depth % 120] = 1;
    below(depth, choice, page);
    (void)local[depth % 120];
}

int main(int count, char **arguments) {
    if (count != 6) return 2;
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    // `leaf`, `main` and the three frames outside it count too.
    unsigned depth = atoi(arguments[1]) > 5 ? atoi(arguments[1]) - 5 : 0;
    bool varies = !strcmp(arguments[2], "vary");
    uses_malloc = !strcmp(arguments[3], "malloc");
    size_t pages = atol(arguments[4]);
    int rounds = atoi(arguments[5]);
    std::vector<char *> all(pages, nullptr);
    std::vector<double> costs;
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) return 1;
    unsigned random = 1, choices[64];
    for (unsigned &choice : choices) {
        random = random * 1103515245 + 12345;
        choice = random ^ random >> 16;
    }
    for (int round = 0; round < rounds; round++) {
        double start = now();
        char *memory = nullptr;
        if (!uses_malloc) {
            memory = static_cast<char *>(mmap(nullptr, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
            if (memory == MAP_FAILED) return 1;
        }
        for (size_t page = 0; page < pages; page++) {
            random = random * 1103515245 + 12345;
            if (!uses_malloc) all[page] = memory + page * 4096;
            below(depth, varies ? choices[random >> 16 & 63] : 0, &all[page]);
        }
        if (uses_malloc) {
            for (char *page : all) free(page);
        } else {
            munmap(memory, pages * 4096);
        }
        costs.push_back((now() - start) / pages);
    }
    std::sort(costs.begin(), costs.end());
    printf("%.1f %.1f\n", costs.front(), costs[costs.size() / 2]);
}
