//! Decoded messages as JSON.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use bitcoin::{
    Block, Transaction,
    bip152::{BlockTransactionsRequest, HeaderAndShortIds},
    block::Header,
    p2p::{
        ServiceFlags,
        address::{AddrV2, AddrV2Message, Address},
        message::NetworkMessage,
        message_blockdata::Inventory,
        message_bloom::FilterLoad,
        message_network::{Reject, VersionMessage},
    },
};
use serde_json::{Map, Value as Json, json};

use crate::show::reversed_hex;

pub(super) fn message(message: &NetworkMessage) -> Json {
    match message {
        NetworkMessage::Version(version) => version_message(version),
        NetworkMessage::Addr(addresses) => {
            let addresses = addresses.iter().map(|(time, found)| with_time(*time, address(found)));
            json!({ "count": addresses.len(), "addresses": addresses.collect::<Vec<_>>() })
        }
        NetworkMessage::AddrV2(addresses) => {
            let addresses = addresses.iter().map(address_v2);
            json!({ "count": addresses.len(), "addresses": addresses.collect::<Vec<_>>() })
        }
        NetworkMessage::Inv(items) | NetworkMessage::GetData(items) | NetworkMessage::NotFound(items) => {
            json!({ "count": items.len(), "items": items.iter().map(inventory).collect::<Vec<_>>() })
        }
        NetworkMessage::GetBlocks(request) => {
            locator(request.version, &request.locator_hashes, &request.stop_hash.to_string())
        }
        NetworkMessage::GetHeaders(request) => {
            locator(request.version, &request.locator_hashes, &request.stop_hash.to_string())
        }
        NetworkMessage::Tx(found) => transaction(found),
        NetworkMessage::Block(found) => block(found),
        NetworkMessage::Headers(headers) => {
            json!({ "count": headers.len(), "headers": headers.iter().map(header).collect::<Vec<_>>() })
        }
        NetworkMessage::Ping(nonce) | NetworkMessage::Pong(nonce) => json!({ "nonce": nonce }),
        NetworkMessage::MerkleBlock(found) => json!({
            "header": header(&found.header),
            "transactions": found.txn.num_transactions(),
            "hashes": texts(found.txn.hashes()),
            "flags": found.txn.bits().iter().map(|bit| if *bit { '1' } else { '0' }).collect::<String>(),
        }),
        NetworkMessage::FilterLoad(filter) => filter_load(filter),
        NetworkMessage::FilterAdd(filter) => json!({ "data": hex::encode(&filter.data) }),
        NetworkMessage::SendCmpct(found) => json!({ "high_bandwidth": found.send_compact, "version": found.version }),
        NetworkMessage::CmpctBlock(found) => compact_block(&found.compact_block),
        NetworkMessage::GetBlockTxn(found) => block_transactions_request(&found.txs_request),
        NetworkMessage::BlockTxn(found) => json!({
            "block": found.transactions.block_hash.to_string(),
            "count": found.transactions.transactions.len(),
            "transactions": transactions(&found.transactions.transactions),
        }),
        NetworkMessage::Alert(bytes) => json!({ "alert": hex::encode(bytes) }),
        NetworkMessage::Reject(found) => reject(found),
        NetworkMessage::FeeFilter(fee) => json!({ "fee_rate_sat_per_kvb": fee }),
        NetworkMessage::Unknown { payload, .. } => json!({ "payload": hex::encode(payload) }),
        // Without content.
        NetworkMessage::Verack
        | NetworkMessage::MemPool
        | NetworkMessage::SendHeaders
        | NetworkMessage::GetAddr
        | NetworkMessage::FilterClear
        | NetworkMessage::WtxidRelay
        | NetworkMessage::SendAddrV2 => Json::Object(Map::new()),
        filters => compact_filters(filters),
    }
}

/// Messages of BIP 157.
fn compact_filters(message: &NetworkMessage) -> Json {
    match message {
        NetworkMessage::GetCFilters(found) => json!({
            "filter_type": found.filter_type,
            "start_height": found.start_height,
            "stop_hash": found.stop_hash.to_string(),
        }),
        NetworkMessage::CFilter(found) => json!({
            "filter_type": found.filter_type,
            "block": found.block_hash.to_string(),
            "filter": hex::encode(&found.filter),
        }),
        NetworkMessage::GetCFHeaders(found) => json!({
            "filter_type": found.filter_type,
            "start_height": found.start_height,
            "stop_hash": found.stop_hash.to_string(),
        }),
        NetworkMessage::CFHeaders(found) => json!({
            "filter_type": found.filter_type,
            "stop_hash": found.stop_hash.to_string(),
            "previous_filter_header": found.previous_filter_header.to_string(),
            "filter_hashes": texts(&found.filter_hashes),
        }),
        NetworkMessage::GetCFCheckpt(found) => {
            json!({ "filter_type": found.filter_type, "stop_hash": found.stop_hash.to_string() })
        }
        NetworkMessage::CFCheckpt(found) => json!({
            "filter_type": found.filter_type,
            "stop_hash": found.stop_hash.to_string(),
            "filter_headers": texts(&found.filter_headers),
        }),
        _ => Json::Null,
    }
}

fn version_message(version: &VersionMessage) -> Json {
    json!({
        "version": version.version,
        "services": services(version.services),
        "timestamp": version.timestamp,
        "receiver": address(&version.receiver),
        "sender": address(&version.sender),
        "nonce": version.nonce,
        "user_agent": version.user_agent,
        "start_height": version.start_height,
        "relay": version.relay,
    })
}

/// Names of the bits that have one, joined by `|`, and the others as a number.
fn services(services: ServiceFlags) -> String {
    let text = services.to_string();
    let names = text.strip_prefix("ServiceFlags(").and_then(|text| text.strip_suffix(')'));
    names.map(str::to_owned).unwrap_or(text)
}

fn with_time(time: u32, mut address: Json) -> Json {
    if let Json::Object(fields) = &mut address {
        fields.insert("time".to_owned(), json!(time));
    }
    address
}

fn address(found: &Address) -> Json {
    let [a, b, c, d, e, f, g, h] = found.address;
    let ip = Ipv6Addr::new(a, b, c, d, e, f, g, h).to_canonical();
    json!({ "services": services(found.services), "address": SocketAddr::new(ip, found.port).to_string() })
}

fn address_v2(found: &AddrV2Message) -> Json {
    let (network, address) = match &found.addr {
        AddrV2::Ipv4(ip) => ("ipv4", Ipv4Addr::to_string(ip)),
        AddrV2::Ipv6(ip) => ("ipv6", ip.to_string()),
        AddrV2::TorV2(key) => ("torv2", hex::encode(key)),
        AddrV2::TorV3(key) => ("torv3", hex::encode(key)),
        AddrV2::I2p(hash) => ("i2p", hex::encode(hash)),
        AddrV2::Cjdns(ip) => ("cjdns", ip.to_string()),
        AddrV2::Unknown(network, bytes) => {
            let fields = json!({
                "services": services(found.services),
                "network": network,
                "address": hex::encode(bytes),
                "port": found.port,
            });
            return with_time(found.time, fields);
        }
    };
    let fields = json!({
        "services": services(found.services),
        "network": network,
        "address": address,
        "port": found.port,
    });
    with_time(found.time, fields)
}

fn inventory(item: &Inventory) -> Json {
    let (kind, hash) = match item {
        Inventory::Error => ("error", String::new()),
        Inventory::Transaction(hash) => ("tx", hash.to_string()),
        Inventory::Block(hash) => ("block", hash.to_string()),
        Inventory::CompactBlock(hash) => ("compact_block", hash.to_string()),
        Inventory::WTx(hash) => ("wtx", hash.to_string()),
        Inventory::WitnessTransaction(hash) => ("witness_tx", hash.to_string()),
        Inventory::WitnessBlock(hash) => ("witness_block", hash.to_string()),
        Inventory::Unknown { inv_type, hash } => return json!({ "type": inv_type, "hash": reversed_hex(hash) }),
    };
    json!({ "type": kind, "hash": hash })
}

fn locator(version: u32, hashes: &[bitcoin::BlockHash], stop: &str) -> Json {
    json!({ "version": version, "locator_hashes": texts(hashes), "stop_hash": stop })
}

fn header(header: &Header) -> Json {
    json!({
        "hash": header.block_hash().to_string(),
        "version": header.version.to_consensus(),
        "previous_block": header.prev_blockhash.to_string(),
        "merkle_root": header.merkle_root.to_string(),
        "time": header.time,
        "bits": format!("{:08x}", header.bits.to_consensus()),
        "nonce": header.nonce,
    })
}

fn block(block: &Block) -> Json {
    json!({
        "header": header(&block.header),
        "count": block.txdata.len(),
        "transactions": transactions(&block.txdata),
    })
}

fn compact_block(block: &HeaderAndShortIds) -> Json {
    // Each index is the difference to the one before, less one.
    let mut next = 0_u64;
    let prefilled = block.prefilled_txs.iter().map(|found| {
        let index = next + u64::from(found.idx);
        next = index + 1;
        json!({ "index": index, "transaction": transaction(&found.tx) })
    });
    json!({
        "header": header(&block.header),
        "nonce": block.nonce,
        "prefilled_transactions": prefilled.collect::<Vec<_>>(),
        "count": block.short_ids.len(),
        "short_ids": block.short_ids.iter().map(|id| reversed_hex(id.as_ref())).collect::<Vec<_>>(),
    })
}

fn block_transactions_request(request: &BlockTransactionsRequest) -> Json {
    json!({
        "block": request.block_hash.to_string(),
        "count": request.indexes.len(),
        "indexes": request.indexes.iter().map(u64::to_string).collect::<Vec<_>>().join(" "),
    })
}

fn transactions(transactions: &[Transaction]) -> Vec<Json> {
    transactions.iter().map(transaction).collect()
}

fn transaction(transaction: &Transaction) -> Json {
    let inputs = transaction.input.iter().map(|input| {
        json!({
            "txid": input.previous_output.txid.to_string(),
            "index": input.previous_output.vout,
            "script_sig": hex::encode(input.script_sig.as_bytes()),
            "sequence": input.sequence.to_consensus_u32(),
            "witness": input.witness.iter().map(hex::encode).collect::<Vec<_>>(),
        })
    });
    let outputs = transaction.output.iter().map(|output| {
        json!({ "value": output.value.to_sat(), "script_pubkey": hex::encode(output.script_pubkey.as_bytes()) })
    });
    json!({
        "txid": transaction.compute_txid().to_string(),
        "wtxid": transaction.compute_wtxid().to_string(),
        "version": transaction.version.0,
        "lock_time": transaction.lock_time.to_consensus_u32(),
        "size": transaction.total_size(),
        "vsize": transaction.vsize(),
        "inputs": inputs.collect::<Vec<_>>(),
        "outputs": outputs.collect::<Vec<_>>(),
    })
}

fn filter_load(filter: &FilterLoad) -> Json {
    json!({
        "filter": hex::encode(&filter.filter),
        "hash_functions": filter.hash_funcs,
        "tweak": filter.tweak,
        "flags": format!("{:?}", filter.flags),
    })
}

fn reject(found: &Reject) -> Json {
    json!({
        "message": found.message,
        "code": format!("{:?}", found.ccode),
        "reason": found.reason,
        "hash": found.hash.to_string(),
    })
}

fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(T::to_string).collect()
}
