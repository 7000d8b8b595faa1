// Holds memory as it is told to, line by line on standard input, and answers each line with "ok":
//   hold FUNCTION PAGES    the function asks for so many pages and touches them; it is called through the ones around it
//   deep LEVELS PAGES      the same, of `bottom`, below so many calls of one function
//   release                gives all of it back
//   load LIBRARY PAGES     opens a library whose function `plugin_hold` holds pages
//   again PAGES            the function of the library once more
//   fork                   answers with the child's number instead; the child goes on as this process does
// Built without frame pointers. Anonymous mappings of its own: the allocator would ask for more than it is asked for.
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

// Touches where it is inlined: the page is asked for by the function itself.
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
    // Huge pages are another test's.
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    // No buffers that grow while it is measured.
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
