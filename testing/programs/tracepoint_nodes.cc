// The tracepoints of well-known nodes with the argument types of their code: -DTAPYRUS, -DRIPPLED, or -DCORE=N for Bitcoin
// Core vN. Only names, order and types are theirs. Prints "ready" and waits for the end of its input.
#if CORE >= 29
#define _SDT_HAS_SEMAPHORES 1
#endif
#include <sys/sdt.h>
#include <cstdint>
#include <cstdio>
#include <unistd.h>

#if CORE >= 29
#define SEMAPHORE(provider, name) unsigned short provider##_##name##_semaphore __attribute__((section(".probes")))
#else
#define SEMAPHORE(provider, name) extern int provider##_##name##_no_semaphore
#endif

template <class T>
T any() {
    static volatile T value{};
    return value;
}
static const char *text() { return any<const char *>(); }
static const unsigned char *bytes() { return any<const unsigned char *>(); }
static int64_t i64() { return any<int64_t>(); }
static uint64_t u64() { return any<uint64_t>(); }
static int32_t i32() { return any<int32_t>(); }
static uint32_t u32() { return any<uint32_t>(); }
static bool flag() { return any<bool>(); }

#ifdef TAPYRUS
static void fire() {
    STAP_PROBE6(net, inbound_message, i64(), text(), text(), text(), u32(), bytes());
    STAP_PROBE6(net, outbound_message, i64(), text(), text(), text(), u64(), bytes());
    STAP_PROBE6(validation, block_connected, bytes(), i32(), u64(), i32(), i64(), i64());
    STAP_PROBE5(utxocache, utxocache_flush, i64(), u32(), u64(), u64(), flag());
    STAP_PROBE6(utxocache, utxocache_add, text(), u32(), text(), u32(), i64(), flag());
    STAP_PROBE6(utxocache, utxocache_spent, text(), u32(), text(), u32(), i64(), flag());
    STAP_PROBE6(utxocache, utxocache_uncache, text(), u32(), text(), u32(), i64(), flag());
    STAP_PROBE2(coin_selection, coins_requested, i64(), text());
    STAP_PROBE5(coin_selection, selected_coins, text(), i64(), i64(), u64(), text());
    STAP_PROBE2(coin_selection, change_info, i64(), text());
    int64_t change = i64();
    STAP_PROBE2(coin_selection, change_info, &change, text());
    STAP_PROBE2(coin_selection, fee_info, i64(), i64());
    STAP_PROBE2(coin_selection, fee_info, i64(), i64());
    STAP_PROBE3(mempool, added, bytes(), u64(), i64());
    STAP_PROBE5(mempool, removed, bytes(), text(), u64(), i64(), i64());
    STAP_PROBE7(mempool, replaced, bytes(), u64(), i64(), i64(), bytes(), u64(), i64());
    STAP_PROBE2(mempool, rejected, bytes(), text());
}
#endif

#ifdef RIPPLED
static void fire() {
    int a = i32(), b = i32();
    uint64_t category = u64();
    STAP_PROBE3(transactor, transactor_exit, bytes(), &a, &b);
    STAP_PROBE2(peer, connect, bytes(), bytes());
    STAP_PROBE2(peer, disconnect, bytes(), bytes());
    STAP_PROBE4(peer, send, bytes(), bytes(), &category, &a);
    STAP_PROBE4(peer, receive, bytes(), bytes(), &category, &b);
}
#endif

#ifdef CORE
SEMAPHORE(net, inbound_message);
SEMAPHORE(net, outbound_message);
SEMAPHORE(net, inbound_connection);
SEMAPHORE(net, outbound_connection);
SEMAPHORE(net, evicted_inbound_connection);
SEMAPHORE(net, misbehaving_connection);
SEMAPHORE(net, closed_connection);
SEMAPHORE(validation, block_connected);
SEMAPHORE(utxocache, flush);
SEMAPHORE(utxocache, add);
SEMAPHORE(utxocache, spent);
SEMAPHORE(utxocache, uncache);
SEMAPHORE(coin_selection, selected_coins);
SEMAPHORE(coin_selection, normal_create_tx_internal);
SEMAPHORE(coin_selection, attempting_aps_create_tx);
SEMAPHORE(coin_selection, aps_create_tx_internal);
SEMAPHORE(mempool, added);
SEMAPHORE(mempool, removed);
SEMAPHORE(mempool, replaced);
SEMAPHORE(mempool, rejected);

// Sizes of transactions were std::size_t before v26.
static auto size() {
#if CORE >= 26
    return i32();
#else
    return u64();
#endif
}

static void fire() {
    STAP_PROBE6(net, inbound_message, i64(), text(), text(), text(), u64(), bytes());
    STAP_PROBE6(net, outbound_message, i64(), text(), text(), text(), u64(), bytes());
    STAP_PROBE6(validation, block_connected, bytes(), i32(), u64(), i32(), i64(), i64());
    STAP_PROBE5(utxocache, flush, i64(), u32(), u64(), u64(), flag());
    STAP_PROBE5(utxocache, add, bytes(), u32(), u32(), i64(), flag());
    STAP_PROBE5(utxocache, spent, bytes(), u32(), u32(), i64(), flag());
    STAP_PROBE5(utxocache, uncache, bytes(), u32(), u32(), i64(), flag());
#if CORE >= 24
    STAP_PROBE5(coin_selection, selected_coins, text(), text(), i64(), i64(), i64());
    STAP_PROBE4(coin_selection, normal_create_tx_internal, text(), flag(), i64(), i32());
    STAP_PROBE1(coin_selection, attempting_aps_create_tx, text());
    STAP_PROBE5(coin_selection, aps_create_tx_internal, text(), flag(), flag(), i64(), i32());
#endif
#if CORE >= 25
    STAP_PROBE3(mempool, added, bytes(), size(), i64());
    STAP_PROBE5(mempool, removed, bytes(), text(), size(), i64(), u64());
    STAP_PROBE2(mempool, rejected, bytes(), text());
#endif
#if CORE >= 25 && CORE < 29
    STAP_PROBE7(mempool, replaced, bytes(), size(), i64(), u64(), bytes(), size(), i64());
#endif
#if CORE >= 29
    STAP_PROBE8(mempool, replaced, bytes(), size(), i64(), u64(), bytes(), size(), i64(), flag());
    STAP_PROBE5(net, inbound_connection, i64(), text(), text(), u32(), u64());
    STAP_PROBE5(net, outbound_connection, i64(), text(), text(), u32(), u64());
    STAP_PROBE5(net, evicted_inbound_connection, i64(), text(), text(), u32(), i64());
    STAP_PROBE2(net, misbehaving_connection, i64(), text());
    STAP_PROBE5(net, closed_connection, i64(), text(), text(), u32(), i64());
#endif
}
#endif

int main() {
    fire();
    std::puts("ready");
    std::fflush(stdout);
    char rest[64];
    while (read(0, rest, sizeof rest) > 0) {}
}
