// Bitcoin Core with -DCORE=N for release N, and Moneyrocket Core with -DMONEYROCKET as its documentation has it. Only names,
// order and types of arguments are theirs.
#ifdef MONEYROCKET
#define CORE 24
#endif
#define SEMAPHORES (CORE >= 29)
#include "tracepoint.h"

#ifdef MONEYROCKET
const char *const FLAVOUR = "moneyrocket";
using Count = uint64_t;
#else
#define TEXT(number) TEXT_OF(number)
#define TEXT_OF(number) #number
const char *const FLAVOUR = "core" TEXT(CORE);
using Count = int64_t;
#endif

// Sizes of transactions were std::size_t before v26.
#if CORE >= 26
using Size = int32_t;
#else
using Size = uint64_t;
#endif


DEFINE_6(net, inbound_message, int64_t, Text, Text, Text, uint64_t, const Payload *)
DEFINE_6(net, outbound_message, int64_t, Text, Text, Text, uint64_t, const Payload *)
DEFINE_6(validation, block_connected, const Hash *, int32_t, uint64_t, int32_t, Count, Count)
DEFINE_5(utxocache, flush, int64_t, uint32_t, uint64_t, uint64_t, bool)
DEFINE_5(utxocache, add, const Hash *, uint32_t, uint32_t, int64_t, bool)
DEFINE_5(utxocache, spent, const Hash *, uint32_t, uint32_t, int64_t, bool)
DEFINE_5(utxocache, uncache, const Hash *, uint32_t, uint32_t, int64_t, bool)
#if CORE >= 24
DEFINE_5(coin_selection, selected_coins, Text, Text, int64_t, int64_t, int64_t)
DEFINE_4(coin_selection, normal_create_tx_internal, Text, bool, int64_t, int32_t)
DEFINE_1(coin_selection, attempting_aps_create_tx, Text)
DEFINE_5(coin_selection, aps_create_tx_internal, Text, bool, bool, int64_t, int32_t)
#endif
#if CORE >= 25
DEFINE_3(mempool, added, const Hash *, Size, int64_t)
DEFINE_5(mempool, removed, const Hash *, Text, Size, int64_t, uint64_t)
DEFINE_2(mempool, rejected, const Hash *, Text)
#endif
#if CORE >= 25 && CORE < 29
DEFINE_7(mempool, replaced, const Hash *, Size, int64_t, uint64_t, const Hash *, Size, int64_t)
#endif
#if CORE >= 29
DEFINE_8(mempool, replaced, const Hash *, Size, int64_t, uint64_t, const Hash *, Size, int64_t, bool)
DEFINE_5(net, inbound_connection, int64_t, Text, Text, uint32_t, uint64_t)
DEFINE_5(net, outbound_connection, int64_t, Text, Text, uint32_t, uint64_t)
DEFINE_5(net, evicted_inbound_connection, int64_t, Text, Text, uint32_t, int64_t)
DEFINE_2(net, misbehaving_connection, int64_t, Text)
DEFINE_5(net, closed_connection, int64_t, Text, Text, uint32_t, int64_t)
#endif

#define PEER "peer_id=7", "address=203.0.113.7:8333"
#define MESSAGE PEER, "connection_type=outbound-full-relay", "message_type=ping", "size=8", "payload=@seeded", "seed=1"
#define COIN "txid=1", "index=0", "height=100", "value=5000000000", "is_coinbase=false"

const Location LOCATIONS[] = {
    ENTRY(net, inbound_message, 1, MESSAGE),
    ENTRY(net, outbound_message, 1, MESSAGE),
    ENTRY(validation, block_connected, 1, "hash=1", "height=100", "transactions=2", "inputs=3", "sigops=4", "duration=5000000"),
    ENTRY(utxocache, flush, 1, "duration=1000", "mode=0", "coins=10", "memory=2000", "for_prune=false"),
    ENTRY(utxocache, add, 1, COIN),
    ENTRY(utxocache, spent, 1, COIN),
    ENTRY(utxocache, uncache, 1, COIN),
#if CORE >= 24
    ENTRY(coin_selection, selected_coins, 1, "wallet=default", "algorithm=bnb", "target=1000", "waste=-5", "selected=1005"),
    ENTRY(coin_selection, normal_create_tx_internal, 1, "wallet=default", "success=true", "fee=141", "change_position=-1"),
    ENTRY(coin_selection, attempting_aps_create_tx, 1, "wallet=default"),
    ENTRY(coin_selection, aps_create_tx_internal, 1, "wallet=default", "is_used=true", "success=true", "fee=141",
                   "change_position=1"),
#endif
#if CORE >= 25
    ENTRY(mempool, added, 1, "txid=1", "size=200", "fee=1000"),
    ENTRY(mempool, removed, 1, "txid=1", "reason=block", "size=200", "fee=1000", "entry_time=1700000000"),
    ENTRY(mempool, rejected, 1, "txid=1", "reason=min-fee-not-met"),
    ENTRY(mempool, replaced, 1, "replaced_txid=1", "replaced_size=200", "replaced_fee=1000",
                   "replaced_entry_time=1700000000", "replacement_id=2", "replacement_size=250", "replacement_fee=2000",
#if CORE >= 29
                   "is_txid=true"
#endif
                   ),
#endif
#if CORE >= 29
    ENTRY(net, inbound_connection, 1, PEER, "connection_type=inbound", "network=1", "connections=3"),
    ENTRY(net, outbound_connection, 1, PEER, "connection_type=outbound-full-relay", "network=1", "connections=3"),
    ENTRY(net, evicted_inbound_connection, 1, PEER, "connection_type=inbound", "network=1", "established=1700000000"),
    ENTRY(net, misbehaving_connection, 1, "peer_id=7", "reason=mutated%20block"),
    ENTRY(net, closed_connection, 1, PEER, "connection_type=inbound", "network=1", "established=1700000000"),
#endif
};
const size_t LOCATION_COUNT = sizeof LOCATIONS / sizeof *LOCATIONS;

bool flavour_command(const char *, const char *(*)(const char *, const char *)) { return false; }
