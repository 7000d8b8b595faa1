#![no_main]
//! Payloads of P2P messages: the first byte chooses the type. What is decoded is the content of no shorter payload.
use chainscope_trace::content::{Protocol, decode};
use libfuzzer_sys::fuzz_target;

/// Types of messages with content.
const TYPES: [&str; 31] = [
    "version",
    "verack",
    "addr",
    "inv",
    "getdata",
    "notfound",
    "getblocks",
    "getheaders",
    "mempool",
    "tx",
    "block",
    "headers",
    "sendheaders",
    "ping",
    "pong",
    "merkleblock",
    "filterload",
    "filteradd",
    "getcfilters",
    "cfilter",
    "getcfheaders",
    "cfheaders",
    "getcfcheckpt",
    "cfcheckpt",
    "sendcmpct",
    "cmpctblock",
    "getblocktxn",
    "blocktxn",
    "alert",
    "reject",
    "addrv2",
];

fuzz_target!(|data: &[u8]| {
    let Some((kind, payload)) = data.split_first() else { return };
    let message_type = TYPES[usize::from(*kind) % TYPES.len()];
    let Ok(content) = decode(Protocol::Bitcoin, message_type, payload) else { return };
    assert!(!content.is_null(), "{message_type}");
    let shorter = payload.split_last().map(|(_, shorter)| shorter);
    assert!(shorter.is_none_or(|shorter| decode(Protocol::Bitcoin, message_type, shorter).is_err()), "{message_type}");
});
