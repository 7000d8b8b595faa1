// Definition of tracepoints, without the standard library: a flavour compiles in a second. Each location is in a function of
// its own.
#pragma once
#include <cstddef>
#include <cstdint>
#if SEMAPHORES
#define _SDT_HAS_SEMAPHORES 1
#endif
#include <sys/sdt.h>

// What parameters point to. A node passes `const unsigned char *` for all of them; here the type says what is meant.
struct Hash;      // 32 bytes, displayed in reverse
struct Id;        // 32 bytes, displayed as they are
struct Payload;   // `size` bytes
struct Endpoint;  // a socket address
struct PublicKey; // 33 bytes
using Text = const char *;

enum class Kind { I32, U32, I64, U64, Bool, Text, Hash, Id, Payload, Endpoint, PublicKey, ToI32, ToI64, ToU64 };

template <class T> constexpr Kind KIND = Kind::Text;
template <> inline constexpr Kind KIND<int32_t> = Kind::I32;
template <> inline constexpr Kind KIND<uint32_t> = Kind::U32;
template <> inline constexpr Kind KIND<int64_t> = Kind::I64;
template <> inline constexpr Kind KIND<uint64_t> = Kind::U64;
template <> inline constexpr Kind KIND<bool> = Kind::Bool;
template <> inline constexpr Kind KIND<const Hash *> = Kind::Hash;
template <> inline constexpr Kind KIND<const Id *> = Kind::Id;
template <> inline constexpr Kind KIND<const Payload *> = Kind::Payload;
template <> inline constexpr Kind KIND<const Endpoint *> = Kind::Endpoint;
template <> inline constexpr Kind KIND<const PublicKey *> = Kind::PublicKey;
template <> inline constexpr Kind KIND<const int32_t *> = Kind::ToI32;
template <> inline constexpr Kind KIND<const int64_t *> = Kind::ToI64;
template <> inline constexpr Kind KIND<const uint64_t *> = Kind::ToU64;

// A location of a tracepoint.
struct Location {
    const char *name;
    int number;
    const volatile unsigned short *semaphore;
    // Of each argument its type, and "name=default" for those and for what else the values are made of.
    const Kind *kinds;
    size_t count;
    const char *settings[10];
    // Integers and addresses, each in 64 bits.
    void (*fire)(const uint64_t *values);
};

#ifdef __clang__
#define APART __attribute__((noinline))
#else
#define APART __attribute__((noipa))
#endif

// With semaphores a tracepoint is only reached while its semaphore is raised, as in Bitcoin Core from v29 on.
#if SEMAPHORES
#define SEMAPHORE(provider, name) volatile unsigned short provider##_##name##_semaphore __attribute__((section(".probes")))
#define SEMAPHORE_OF(provider, name) &provider##_##name##_semaphore
#define IS_ACTIVE(provider, name) (provider##_##name##_semaphore > 0)
#else
#define SEMAPHORE(provider, name) extern int provider##_##name##_no_semaphore
#define SEMAPHORE_OF(provider, name) nullptr
#define IS_ACTIVE(provider, name) true
#endif

template <class... T>
struct Types {
    static constexpr Kind KINDS[] = {KIND<T>...};
    static constexpr size_t COUNT = sizeof...(T);
};

#define V(type, i) (type) v[i]

// LOCATION_N(provider, name, number of the location, type of each argument…)
#define LOCATION_(p, n, l, probe, parameters, arguments, passed, ...)                                                      \
    APART static void p##_##n##_##l parameters {                                                                           \
        if (IS_ACTIVE(p, n)) probe arguments;                                                                              \
    }                                                                                                                      \
    static void p##_##n##_##l##_fire(const uint64_t *v) { p##_##n##_##l passed; }                                          \
    using p##_##n##_##l##_types = Types<__VA_ARGS__>;
#define LOCATION_1(p, n, l, A) LOCATION_(p, n, l, STAP_PROBE1, (A a), (p, n, a), (V(A, 0)), A)
#define LOCATION_2(p, n, l, A, B) LOCATION_(p, n, l, STAP_PROBE2, (A a, B b), (p, n, a, b), (V(A, 0), V(B, 1)), A, B)
#define LOCATION_3(p, n, l, A, B, C)                                                                                       \
    LOCATION_(p, n, l, STAP_PROBE3, (A a, B b, C c), (p, n, a, b, c), (V(A, 0), V(B, 1), V(C, 2)), A, B, C)
#define LOCATION_4(p, n, l, A, B, C, D)                                                                                    \
    LOCATION_(p, n, l, STAP_PROBE4, (A a, B b, C c, D d), (p, n, a, b, c, d), (V(A, 0), V(B, 1), V(C, 2), V(D, 3)), A, B, C, D)
#define LOCATION_5(p, n, l, A, B, C, D, E)                                                                                 \
    LOCATION_(p, n, l, STAP_PROBE5, (A a, B b, C c, D d, E e), (p, n, a, b, c, d, e),                                      \
              (V(A, 0), V(B, 1), V(C, 2), V(D, 3), V(E, 4)), A, B, C, D, E)
#define LOCATION_6(p, n, l, A, B, C, D, E, F)                                                                              \
    LOCATION_(p, n, l, STAP_PROBE6, (A a, B b, C c, D d, E e, F f), (p, n, a, b, c, d, e, f),                              \
              (V(A, 0), V(B, 1), V(C, 2), V(D, 3), V(E, 4), V(F, 5)), A, B, C, D, E, F)
#define LOCATION_7(p, n, l, A, B, C, D, E, F, G)                                                                           \
    LOCATION_(p, n, l, STAP_PROBE7, (A a, B b, C c, D d, E e, F f, G g), (p, n, a, b, c, d, e, f, g),                      \
              (V(A, 0), V(B, 1), V(C, 2), V(D, 3), V(E, 4), V(F, 5), V(G, 6)), A, B, C, D, E, F, G)
#define LOCATION_8(p, n, l, A, B, C, D, E, F, G, H)                                                                        \
    LOCATION_(p, n, l, STAP_PROBE8, (A a, B b, C c, D d, E e, F f, G g, H h), (p, n, a, b, c, d, e, f, g, h),              \
              (V(A, 0), V(B, 1), V(C, 2), V(D, 3), V(E, 4), V(F, 5), V(G, 6), V(H, 7)), A, B, C, D, E, F, G, H)

// The first location of a tracepoint, and its semaphore.
#define DEFINE_1(p, n, ...) SEMAPHORE(p, n); LOCATION_1(p, n, 1, __VA_ARGS__)
#define DEFINE_2(p, n, ...) SEMAPHORE(p, n); LOCATION_2(p, n, 1, __VA_ARGS__)
#define DEFINE_3(p, n, ...) SEMAPHORE(p, n); LOCATION_3(p, n, 1, __VA_ARGS__)
#define DEFINE_4(p, n, ...) SEMAPHORE(p, n); LOCATION_4(p, n, 1, __VA_ARGS__)
#define DEFINE_5(p, n, ...) SEMAPHORE(p, n); LOCATION_5(p, n, 1, __VA_ARGS__)
#define DEFINE_6(p, n, ...) SEMAPHORE(p, n); LOCATION_6(p, n, 1, __VA_ARGS__)
#define DEFINE_7(p, n, ...) SEMAPHORE(p, n); LOCATION_7(p, n, 1, __VA_ARGS__)
#define DEFINE_8(p, n, ...) SEMAPHORE(p, n); LOCATION_8(p, n, 1, __VA_ARGS__)

// An entry of `LOCATIONS`.
#define ENTRY(p, n, l, ...)                                                                                                \
    {#p ":" #n, l, SEMAPHORE_OF(p, n), p##_##n##_##l##_types::KINDS, p##_##n##_##l##_types::COUNT, {__VA_ARGS__},          \
     p##_##n##_##l##_fire}

// Of each flavour.
extern const char *const FLAVOUR;
extern const Location LOCATIONS[];
extern const size_t LOCATION_COUNT;
// Executes a command that only this flavour has, given a function that finds its settings; returns false if it is not one.
bool flavour_command(const char *command, const char *(*setting)(const char *name, const char *otherwise));

// Of the node: nanoseconds of CLOCK_MONOTONIC; fires as the command does, with settings "name=value"; writes the times of a
// call that began at `before_ns` and ends now.
uint64_t monotonic_ns();
void fire_now(const char *name, const char *const *settings, size_t count);
void report_call(const char *function, uint64_t before_ns);
[[noreturn]] void refuse(const char *message);
