// Allocates memory by commands, one per line of standard input, and answers each with "ok":
//   hold FUNCTION PAGES    FUNCTION maps PAGES pages and touches them
//   deep LEVELS PAGES      the same in `bottom`, below LEVELS recursive calls
//   release                unmaps all pages
//   load LIBRARY PAGES     loads a library and calls its function `plugin_hold`
//   again PAGES            calls `plugin_hold` again
//   fork                   answers with the pid of the child, which reads the following commands
// Built without frame pointers. Uses anonymous mappings, since an allocator would request additional memory.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {
std::vector<std::pair<char *, size_t>> held;

__attribute__((noinline)) char *reserve(size_t pages) {
    void *memory = mmap(nullptr, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    held.emplace_back(static_cast<char *>(memory), pages);
    return static_cast<char *>(memory);
}
} // namespace

// The touching loop is inlined, so the page faults occur in the function itself.
#define HOLD(name)                                                                                                     \
    __attribute__((noinline)) void name(size_t pages) {                                                                \
        volatile char *memory = reserve(pages);                                                                        \
        for (size_t page = 0; page < pages; page++) memory[page * 4096] = 1;                                           \
    }

namespace chain {
HOLD(apply_block)
HOLD(validate)
struct Context {
    __attribute__((noinline)) void commit(size_t pages);
};
HOLD(store)
__attribute__((noinline)) void Context::commit(size_t pages) {
    store(pages);
    asm volatile("" ::: "memory");
}
} // namespace chain
HOLD(bottom)

__attribute__((noinline)) int descend(size_t levels, size_t pages) {
    // Frames of different sizes.
    volatile char local[40];
    local[levels % 40] = 1;
    if (levels == 0) {
        bottom(pages);
        return 0;
    }
    int below = descend(levels - 1, pages);
    return below + local[levels % 40];
}

static void release() {
    for (auto [memory, pages] : held) munmap(memory, pages * 4096);
    held.clear();
}

static void (*plugin_hold)(size_t);

static void load(const char *library) {
    void *handle = dlopen(library, RTLD_NOW);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    plugin_hold = reinterpret_cast<void (*)(size_t)>(dlsym(handle, "plugin_hold"));
}

int main() {
    // Huge pages are covered by another test.
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    // Static buffers, which do not grow during the measurement.
    static char out[256], in[4096];
    setvbuf(stdout, out, _IOLBF, sizeof out);
    setvbuf(stdin, in, _IOFBF, sizeof in);
    held.reserve(1024);
    char line[1024], word[512];
    size_t pages, levels;
    chain::Context context;
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "hold %511s %zu", word, &pages) == 2) {
            if (!strcmp(word, "apply_block")) chain::apply_block(pages);
            else if (!strcmp(word, "validate")) chain::validate(pages);
            else if (!strcmp(word, "commit")) context.commit(pages);
            else abort();
        } else if (sscanf(line, "deep %zu %zu", &levels, &pages) == 2) {
            descend(levels, pages);
        } else if (!strcmp(line, "release\n")) {
            release();
        } else if (sscanf(line, "load %511s %zu", word, &pages) == 2) {
            load(word);
            plugin_hold(pages);
        } else if (sscanf(line, "again %zu", &pages) == 1) {
            plugin_hold(pages);
        } else if (!strcmp(line, "fork\n")) {
            pid_t child = fork();
            if (child < 0) abort();
            if (child > 0) {
                printf("%d\n", child);
                // The child reads the next lines.
                for (;;) pause();
            }
            continue;
        } else {
            abort();
        }
        puts("ok");
    }
    return 0;
}
