// Tapyrus Core: what its code passes. Only names, order and types of arguments are its own.
#define SEMAPHORES 0
#include "tracepoint.h"

const char *const FLAVOUR = "tapyrus";

DEFINE_6(net, inbound_message, int64_t, Text, Text, Text, uint32_t, const Payload *)
DEFINE_6(net, outbound_message, int64_t, Text, Text, Text, uint64_t, const Payload *)
DEFINE_6(validation, block_connected, const Hash *, int32_t, uint64_t, int32_t, int64_t, int64_t)
DEFINE_5(utxocache, utxocache_flush, int64_t, uint32_t, uint64_t, uint64_t, bool)
DEFINE_6(utxocache, utxocache_add, Text, uint32_t, Text, uint32_t, int64_t, bool)
DEFINE_6(utxocache, utxocache_spent, Text, uint32_t, Text, uint32_t, int64_t, bool)
DEFINE_6(utxocache, utxocache_uncache, Text, uint32_t, Text, uint32_t, int64_t, bool)
DEFINE_2(coin_selection, coins_requested, int64_t, Text)
DEFINE_5(coin_selection, selected_coins, Text, int64_t, int64_t, uint64_t, Text)
// Change in colored coins, and in TPC, where the code passes the address of the value.
DEFINE_2(coin_selection, change_info, int64_t, Text)
LOCATION_2(coin_selection, change_info, 2, const int64_t *, Text)
DEFINE_2(coin_selection, fee_info, int64_t, int64_t)
LOCATION_2(coin_selection, fee_info, 2, int64_t, int64_t)
DEFINE_3(mempool, added, const Hash *, uint64_t, int64_t)
DEFINE_5(mempool, removed, const Hash *, Text, uint64_t, int64_t, int64_t)
DEFINE_7(mempool, replaced, const Hash *, uint64_t, int64_t, int64_t, const Hash *, uint64_t, int64_t)
DEFINE_2(mempool, rejected, const Hash *, Text)

#define COLOR "c1ec2fd806701a3f55808cbec3922c38dafaa3070c48c803e9043ee3642c660b46"
#define MESSAGE                                                                                                            \
    "peer_id=7", "address=203.0.113.7:2357", "connection_type=Out-----M-Tx", "message_type=ping", "size=8",               \
        "payload=@seeded", "seed=1"
#define COIN                                                                                                               \
    "txid=00000000000000000000000000000000000000000000000000000000000000a1", "index=0", "token=TPC", "height=100",         \
        "value=5000000000", "is_coinbase=false"

const Location LOCATIONS[] = {
    ENTRY(net, inbound_message, 1, MESSAGE),
    ENTRY(net, outbound_message, 1, MESSAGE),
    ENTRY(validation, block_connected, 1, "hash=1", "height=100", "transactions=2", "inputs=3", "sigops=4", "duration=5000"),
    ENTRY(utxocache, utxocache_flush, 1, "duration=1000", "mode=0", "coins=10", "memory=2000", "for_prune=false"),
    ENTRY(utxocache, utxocache_add, 1, COIN),
    ENTRY(utxocache, utxocache_spent, 1, COIN),
    ENTRY(utxocache, utxocache_uncache, 1, COIN),
    ENTRY(coin_selection, coins_requested, 1, "value=1000", "color=" COLOR),
    ENTRY(coin_selection, selected_coins, 1, "color=" COLOR, "target=1000", "total=1500", "coins=2", "algorithm=BNB"),
    ENTRY(coin_selection, change_info, 1, "value=500", "color=" COLOR),
    ENTRY(coin_selection, change_info, 2, "value=12345", "color=TPC"),
    ENTRY(coin_selection, fee_info, 1, "fee_paid=10380", "fee_needed=10000"),
    ENTRY(coin_selection, fee_info, 2, "fee_paid=10380", "fee_needed=10000"),
    ENTRY(mempool, added, 1, "txid=1", "size=200", "fee=1000"),
    ENTRY(mempool, removed, 1, "txid=1", "reason=block", "size=200", "fee=1000", "entry_time=1700000000"),
    // The code passes the two fees in each other's place.
    ENTRY(mempool, replaced, 1, "replaced_txid=1", "replaced_size=200", "replacement_fee=2000",
                   "replaced_entry_time=1700000000", "replacement_txid=2", "replacement_size=250", "replaced_fee=1000"),
    ENTRY(mempool, rejected, 1, "txid=1", "reason=min-fee-not-met"),
};
const size_t LOCATION_COUNT = sizeof LOCATIONS / sizeof *LOCATIONS;

bool flavour_command(const char *, const char *(*)(const char *, const char *)) { return false; }
