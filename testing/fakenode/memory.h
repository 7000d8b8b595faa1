// Memory that tracers find hard to read.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

constexpr long PAGE = 4096;

// Read-only texts that nothing touches before a tracer does, each in the middle of half a megabyte: around a page that is
// touched the kernel maps others, of large folios more than 64 KB.
constexpr int UNTOUCHED = 8;
constexpr long UNTOUCHED_DISTANCE = 512 * 1024;
#define UNTOUCHED_TEXT "text of a page that was never touched"
__asm__(".pushsection .rodata.untouched,\"a\",@progbits\n"
        ".balign 4096\n"
        ".globl untouched_pages\n"
        ".hidden untouched_pages\n"
        "untouched_pages:\n"
        ".rept 8\n"
        ".skip 262144\n"
        ".asciz \"" UNTOUCHED_TEXT "\"\n"
        ".balign 4096\n"
        ".skip 258048\n"
        ".endr\n"
        ".popsection\n");
extern "C" const char untouched_pages[];

// The next of them; its content is `UNTOUCHED_TEXT`, then zeros.
inline const char *untouched() {
    static std::atomic<int> used;
    int next = used++;
    if (next >= UNTOUCHED) {
        std::fprintf(stderr, "fake node: no untouched page is left of %d\n", UNTOUCHED);
        std::exit(1);
    }
    return untouched_pages + next * UNTOUCHED_DISTANCE + UNTOUCHED_DISTANCE / 2;
}

// An address at which `readable` bytes can be read, and then none. The mapping is never released.
inline char *before_unreadable(uint64_t readable) {
    uint64_t size = (readable + PAGE - 1) / PAGE * PAGE;
    void *at = mmap(nullptr, size + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(static_cast<char *>(at) + size, PAGE, PROT_NONE)) {
        std::perror("fake node: mmap");
        std::exit(1);
    }
    return static_cast<char *>(at) + size - readable;
}

inline char *unreadable() {
    static char *const at = before_unreadable(0);
    return at;
}
