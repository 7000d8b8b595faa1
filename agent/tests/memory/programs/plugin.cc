// Shared library loaded at run time.
#include <cstdlib>
#include <sys/mman.h>

extern "C" __attribute__((noinline)) void plugin_hold(size_t pages) {
    void *memory = mmap(nullptr, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    for (size_t page = 0; page < pages; page++) static_cast<volatile char *>(memory)[page * 4096] = 1;
}
