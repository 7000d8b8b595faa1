//! The lines of the scripts, by the samples of their documentation.

use chainscope_trace::{
    Counts, Event, Incomplete, Selection, Value,
    view::{Coins, Connections, Flushes, Mempool, Monitor, P2p, Raw, Utxos, accounting_line},
};

use crate::support::{accounting, attachment, event, hash, lines, output, text, variant};

/// A message by node, direction, and what is shown of it.
fn message(contract: &str, direction: &str, ms: u64, peer: i64, kind: &str, connection: [&str; 2], size: u64) -> Event {
    let [connection, address] = connection;
    let payload = Value::bytes(vec![7; usize::try_from(size).expect("valid")]);
    let arguments =
        vec![Value::Signed(peer), text(address), text(connection), text(kind), Value::Unsigned(size), payload];
    event(&attachment(contract, &format!("net:{direction}_message")), ms, arguments)
}

const ONION: &str = "faketorv3addressa2ufa6odvoi3s77j4uegey0xb10csyfyve2t33curbyd.onion:8333";

fn traffic() -> Vec<Event> {
    let v6 = ["Out-----M-Tx", "[2a02:b10c:f747:1:ef:fake:ipv6:addr]:8333"];
    vec![
        message("tapyrus", "outbound", 1, 11, "ping", v6, 8),
        message("tapyrus", "inbound", 2, 11, "pong", v6, 8),
        message("tapyrus", "inbound", 3, 16, "inv", ["Out-----M-Tx", "XX.XX.XXX.121:8333"], 37),
        message("tapyrus", "outbound", 4, 9, "inv", ["Out-----M-Tx", ONION], 37),
    ]
}

#[test]
fn p2p_traffic() {
    let found = lines(&mut P2p::default(), &traffic());
    let expected = [
        "Logging P2P traffic",
        "outbound 'ping' msg to peer 11 (Out-----M-Tx, [2a02:b10c:f747:1:ef:fake:ipv6:addr]:8333) with 8 bytes",
        "inbound 'pong' msg from peer 11 (Out-----M-Tx, [2a02:b10c:f747:1:ef:fake:ipv6:addr]:8333) with 8 bytes",
        "inbound 'inv' msg from peer 16 (Out-----M-Tx, XX.XX.XXX.121:8333) with 37 bytes",
        &format!("outbound 'inv' msg to peer 9 (Out-----M-Tx, {ONION}) with 37 bytes"),
        "",
        "  IN MSGS      IN BYTES     MSG/S   OUT MSGS     OUT BYTES     MSG/S  TYPE",
        "        1            37       0.1          1            37       0.1  inv",
        "        0             0       0.0          1             8       0.1  ping",
        "        1             8       0.1          0             0       0.0  pong",
        "",
        "  IN MSGS      IN BYTES     MSG/S   OUT MSGS     OUT BYTES     MSG/S  PEER",
        &format!("        0             0       0.0          1            37       0.1  9 (Out-----M-Tx, {ONION})"),
        "        1             8       0.1          1             8       0.1  11 (Out-----M-Tx, [2a02:b10c:f747:1:ef:fake:ipv6:addr]:8333)",
        "        1            37       0.1          0             0       0.0  16 (Out-----M-Tx, XX.XX.XXX.121:8333)",
        "",
        "        2            45       0.2          2            45       0.2  total in 10.000 s",
        "4 hits = 4 delivered + 0 dropped",
    ];
    assert_eq!(found, expected);
}

#[test]
fn losses_are_in_the_last_line_by_tracepoint_and_reason() {
    let mut accounting = accounting(&traffic());
    assert_eq!(accounting_line(&accounting), "4 hits = 4 delivered + 0 dropped");
    let dropped = [("ring_full".into(), 3), ("unused".into(), 0)].into_iter().collect();
    accounting
        .tracepoints
        .insert("mempool:removed".to_owned(), Counts { hits: 10, delivered: 6, incomplete: 0, dropped });
    let line = "14 hits = 10 delivered + 3 dropped + 1 not accounted for (mempool:removed: ring_full 3)";
    assert_eq!(accounting_line(&accounting), line);
}

#[test]
fn raw_messages_whole_and_in_part() {
    let mut events = vec![message("tapyrus", "outbound", 1, 4, "inv", ["outbound-full-relay", "XX.XXX.XX.4:8333"], 4)];
    let mut cut = message("tapyrus", "inbound", 2, 32, "tx", ["outbound-full-relay", "XX.XXX.XXX.43:8333"], 53_552);
    cut.arguments[5] =
        Value::Bytes { bytes: vec![2, 0, 0].into(), claimed: 53_552, incomplete: Some(Incomplete::Limit) };
    let mut unreadable = cut.clone();
    unreadable.arguments[5] = Value::Unreadable { address: 0 };
    events.extend([cut, unreadable]);
    let found = lines(&mut Raw::default(), &events);
    let expected = [
        "Logging raw P2P messages.",
        " outbound msg 'inv' from peer 4 (outbound-full-relay, XX.XXX.XX.4:8333) with 4 bytes: 07070707",
        "Warning: incomplete message (only 3 out of 53552 bytes)! inbound msg 'tx' from peer 32 (outbound-full-relay, XX.XXX.XXX.43:8333) with 53552 bytes: 020000",
        "Warning: incomplete message (only 0 out of 53552 bytes)! inbound msg 'tx' from peer 32 (outbound-full-relay, XX.XXX.XXX.43:8333) with 53552 bytes: <unreadable>",
        "3 hits = 3 delivered + 0 dropped",
    ];
    assert_eq!(found, expected);
}

#[test]
fn peers_and_their_messages() {
    let mut events = traffic();
    let closed = attachment("bitcoin-core-v31", "net:closed_connection");
    let arguments = vec![Value::Signed(16), text("x"), text("inbound"), Value::Unsigned(0), Value::Signed(1)];
    events.push(event(&closed, 5, arguments));
    let mut monitor = Monitor::new(true, false);
    let found = lines(&mut monitor, &events);
    let expected = [
        "P2P Message Monitor",
        "",
        "  PEER  OUTBOUND              INBOUND               TYPE                    ADDR                                                               ",
        "     9  1            37 byte  0             0 byte  Out-----M-Tx            faketorv3addressa2ufa6odvoi3s77j4uegey0xb10csyfyve2t33curbyd.onion:8333",
        "    11  1             8 byte  1             8 byte  Out-----M-Tx            [2a02:b10c:f747:1:ef:fake:ipv6:addr]:8333                          ",
        "    16  0             0 byte  1            37 byte  Out-----M-Tx            XX.XX.XXX.121:8333                                                  disconnected",
        "5 hits = 5 delivered + 0 dropped",
    ];
    assert_eq!(found, expected);
    let rows: Vec<String> = monitor.peers()[&(4711, 11)].recent.iter().map(|entry| entry.row(68)).collect();
    assert_eq!(rows, [" ping (8 byte) --->".to_owned(), format!("{:>67} ", "<--- pong (8 bytes)")]);
    assert_eq!(monitor.peers()[&(4711, 11)].recent[1].payload.as_deref(), Some(&[7; 8][..]));
}

#[test]
fn flushes_of_both_nodes() {
    let flush = |attachment, [duration, mode, coins, memory]: [u64; 4], prune| {
        let [mode, coins, memory] = [mode, coins, memory].map(Value::Unsigned);
        event(attachment, 1, vec![Value::Signed(duration.cast_signed()), mode, coins, memory, Value::Bool(prune)])
    };
    let tapyrus = attachment("tapyrus", "utxocache:utxocache_flush");
    let events = [
        flush(&tapyrus, [730_451, 1, 22_990, 3_323_540], true),
        flush(&tapyrus, [637_657, 3, 122_320, 17_124_800], false),
    ];
    let expected = [
        "Logging utxocache flushes. Ctrl-C to end...",
        "Duration (µs)   Mode       Coins Count     Memory Usage    Prune   ",
        "730451          IF_NEEDED  22990           3323.54 kB      True    ",
        "637657          ALWAYS     122320          17124.80 kB     False   ",
        "2 hits = 2 delivered + 0 dropped",
    ];
    assert_eq!(lines(&mut Flushes, &events), expected);

    // A mode of a later release is a number.
    let core = attachment("bitcoin-core-v31", "utxocache:flush");
    let events = [flush(&core, [1, 4, 0, 0], false), flush(&core, [1, 5, 0, 0], false)];
    let expected = [
        "Logging utxocache flushes. Ctrl-C to end...",
        "Duration (µs)   Mode         Coins Count     Memory Usage    Flush for Prune",
        "1               FORCE_SYNC   0               0.00 kB         False   ",
        "1               5            0               0.00 kB         False   ",
        "2 hits = 2 delivered + 0 dropped",
    ];
    assert_eq!(lines(&mut Flushes, &events), expected);
}

const TXID: &str = "409b414378be14dfd03daed6d390ffd27b4e122f1866009536d52331860fd4b0";

#[test]
fn coins_of_the_utxo_cache() {
    let coin = |name: &str, coinbase| {
        let amounts = [Value::Unsigned(3), Value::Unsigned(101), Value::Signed(5_000_000_000), Value::Bool(coinbase)];
        let arguments = [hash(TXID)].into_iter().chain(amounts).collect();
        event(&attachment("moneyrocket", &format!("utxocache:{name}")), 1, arguments)
    };
    let expected = [
        "OP      Outpoint                                                                           Value  Height Coinbase",
        &format!("Added   {TXID}:3            5000000000     101 Yes"),
        &format!("Spent   {TXID}:3            5000000000     101 No"),
        &format!("Uncache {TXID}:3            5000000000     101 No"),
        "3 hits = 3 delivered + 0 dropped",
    ];
    assert_eq!(lines(&mut Utxos, &[coin("add", true), coin("spent", false), coin("uncache", false)]), expected);

    let arguments = vec![
        text(TXID),
        Value::Unsigned(0),
        text("TPC"),
        Value::Unsigned(1),
        Value::Signed(5_000_000_000),
        Value::Bool(true),
    ];
    let events = [event(&attachment("tapyrus", "utxocache:utxocache_add"), 1, arguments)];
    let expected = [
        "OP      Outpoint                                                                                        Token            Value  Height Coinbase",
        &format!("Added   :{TXID} 0      TPC       5000000000       1 Yes"),
        "1 hits = 1 delivered + 0 dropped",
    ];
    assert_eq!(lines(&mut Utxos, &events), expected);
}

#[test]
fn coin_selection_of_tapyrus() {
    let of = |name: &str, arguments| event(&attachment("tapyrus", &format!("coin_selection:{name}")), 1, arguments);
    let color = "c1ec2fd806701a3f55808cbec3922c38dafaa3070c48c803e9043ee3642c660b46";
    let select = vec![text(color), Value::Signed(-1), Value::Signed(12_346), Value::Unsigned(2), text("knapsack")];
    // The second location passes the address of the value, which the probe follows.
    let address = variant("tapyrus", "coin_selection:change_info");
    let events = [
        of("coins_requested", vec![Value::Signed(-5), text(color)]),
        of("selected_coins", select),
        of("change_info", vec![Value::Signed(12_346), text(color)]),
        event(&address, 1, vec![Value::Signed(12_347), text("TPC")]),
        event(&address, 1, vec![Value::Unreadable { address: 8 }, text("TPC")]),
        of("fee_info", vec![Value::Signed(10_000), Value::Signed(9_000)]),
    ];
    let expected = [
        "Logging Coin selection ",
        &format!("Request [{color}] : value [-5]"),
        &format!(
            "Select [{color}]: try to select [-1] using [2] coins of total value [12346] algorithm tried is [knapsack]"
        ),
        &format!("Change [{color}] : value [12346]"),
        "Change [TPC] : value [12347]",
        "Change [TPC] : value [<unreadable>]",
        "Fee [TPC] : value [10000] need [9000]",
        &format!(
            "Transaction : fee [10000] need [9000] color [TPC] change [<unreadable>] color [{color}] requested [-5] \
             change [12346] algorithm [knapsack] target [-1] selected [12346] coins [2]"
        ),
        "6 hits = 6 delivered + 0 dropped",
    ];
    assert_eq!(lines(&mut Coins::default(), &events), expected);
}

/// Two threads create transactions at the same time, one with a second selection for a greater fee; what fails has no fee.
#[test]
fn coin_selection_of_tapyrus_is_grouped_by_transaction() {
    let of = |tid, name: &str, arguments| {
        let mut event = event(&attachment("tapyrus", &format!("coin_selection:{name}")), 1, arguments);
        event.tid = tid;
        event
    };
    let request = |tid, value, color| of(tid, "coins_requested", vec![Value::Signed(value), text(color)]);
    let select = |tid, color, target, total, algorithm| {
        let amounts = [target, total].map(Value::Signed);
        let arguments = [text(color)].into_iter().chain(amounts).chain([Value::Unsigned(1), text(algorithm)]);
        of(tid, "selected_coins", arguments.collect())
    };
    let change = |tid, value, color| of(tid, "change_info", vec![Value::Signed(value), text(color)]);
    let fee = |tid, paid, needed| of(tid, "fee_info", vec![Value::Signed(paid), Value::Signed(needed)]);
    let events = [
        request(1, 10, "TPC"),
        request(1, 7, "c1aa"),
        request(2, 20, "TPC"),
        select(1, "TPC", 10, 15, "BNB"),
        select(1, "c1aa", 7, 9, "knapsack"),
        change(1, 2, "c1aa"),
        change(1, 5, "TPC"),
        select(2, "TPC", 20, 20, "BNB"),
        // The fee is too small: once more.
        select(1, "TPC", 13, 13, "knapsack"),
        fee(1, 3, 3),
        // Fails.
        request(2, 30, "TPC"),
        // Fails without a selection.
        request(2, 40, "TPC"),
        select(2, "TPC", 40, 41, "BNB"),
        fee(2, 1, 1),
    ];
    let found = lines(&mut Coins::default(), &events);
    let grouped: Vec<&String> = found.iter().filter(|line| line.starts_with("Transaction")).collect();
    let expected = [
        "Transaction : fee [3] need [3] color [TPC] requested [10] algorithm [knapsack] target [13] selected [13] coins [1] \
         color [c1aa] requested [7] change [2] algorithm [knapsack] target [7] selected [9] coins [1]",
        "Transaction : incomplete color [TPC] requested [20] algorithm [BNB] target [20] selected [20] coins [1]",
        "Transaction : incomplete color [TPC] requested [30]",
        "Transaction : fee [1] need [1] color [TPC] requested [40] algorithm [BNB] target [40] selected [41] coins [1]",
    ];
    assert_eq!(grouped, expected);
}

#[test]
fn coin_selection_of_bitcoin_core_is_grouped_by_transaction() {
    let of = |name: &str, ms, arguments| {
        event(&attachment("bitcoin-core-v31", &format!("coin_selection:{name}")), ms, arguments)
    };
    let select = |ms, algorithm, waste| {
        let amounts = [1000, waste, 1500].map(Value::Signed);
        of("selected_coins", ms, [text("hot"), text(algorithm)].into_iter().chain(amounts).collect())
    };
    let create = |ms, success| {
        let arguments = vec![text("hot"), Value::Bool(success), Value::Signed(140), Value::Signed(-1)];
        of("normal_create_tx_internal", ms, arguments)
    };
    let second = |ms| of("attempting_aps_create_tx", ms, vec![text("hot")]);
    let used = |ms, is_used| {
        let arguments =
            vec![text("hot"), Value::Bool(is_used), Value::Bool(true), Value::Signed(150), Value::Signed(0)];
        of("aps_create_tx_internal", ms, arguments)
    };
    let events = [
        // Without a second attempt; known when the next transaction begins.
        select(1, "bnb", -7),
        create(2, true),
        // With one that is used.
        select(3, "srd", 1),
        create(4, true),
        second(5),
        select(6, "knapsack", 2),
        used(7, true),
        // With one that is not used.
        select(8, "cg", 1),
        create(9, true),
        second(10),
        select(11, "manual", 2),
        used(12, false),
        // One that fails; known a second later.
        select(13, "bnb", 1),
        create(14, false),
        select(5000, "bnb", 1),
    ];
    let found = lines(&mut Coins::default(), &events);
    let grouped: Vec<&String> = found.iter().filter(|line| line.starts_with("Transaction")).collect();
    let expected = [
        "Transaction [hot] : normal fee [140] change position [-1] algorithm [bnb] target [1000] selected [1500]",
        "Transaction [hot] : avoiding partial spends fee [150] change position [0] algorithm [knapsack] target [1000] selected [1500]",
        "Transaction [hot] : normal fee [140] change position [-1] algorithm [cg] target [1000] selected [1500]",
        "Transaction [hot] : failed algorithm [bnb] target [1000] selected [1500]",
        "Transaction [hot] : incomplete algorithm [bnb] target [1000] selected [1500]",
    ];
    assert_eq!(grouped, expected);
    assert_eq!(found[1], "Select [hot]: try to select [1000] total value [1500] waste [-7] algorithm tried is [bnb]");
    assert_eq!(found[3], grouped[0].as_str(), "before the transaction that follows it");

    let json = output(&mut Coins::default(), Selection::default(), true, &events);
    let last: serde_json::Value = serde_json::from_str(json.lines().last().unwrap()).unwrap();
    assert_eq!(last["summary"]["count"], 5);
    let transactions = last["summary"]["transactions"].as_array().unwrap();
    let states: Vec<&serde_json::Value> = transactions.iter().map(|one| &one["state"]).collect();
    assert_eq!(states, ["created", "created", "created", "failed", "incomplete"]);
    let second = serde_json::json!({
        "pid": 4711, "tid": 4712, "wallet": "hot", "state": "created", "avoids_partial_spends": true, "attempts": 2, "fee": 150,
        "change_position": 0, "algorithm": "knapsack", "target": 1000, "selected": 1500,
    });
    assert_eq!(transactions[1], second);
    assert_eq!(
        (&transactions[2]["algorithm"], &transactions[2]["avoids_partial_spends"]),
        (&"cg".into(), &false.into())
    );
    assert_eq!((&transactions[3]["fee"], &transactions[3]["algorithm"]), (&serde_json::Value::Null, &"bnb".into()));
}

/// Transactions that are known to be complete at the same time are in the order of their last events, whatever their threads.
#[test]
fn transactions_of_threads_are_in_the_order_of_time() {
    let create = |ms, tid, wallet: &str| {
        let arguments = vec![text(wallet), Value::Bool(true), Value::Signed(140), Value::Signed(-1)];
        let name = "coin_selection:normal_create_tx_internal";
        Event { tid, ..event(&attachment("bitcoin-core-v31", name), ms, arguments) }
    };
    let events = [create(1, 9, "first"), create(300, 2, "second"), create(9000, 5, "last")];
    let found = lines(&mut Coins::default(), &events);
    let wallets: Vec<&str> =
        found.iter().filter_map(|line| line.strip_prefix("Transaction [")?.split_once(']')).map(|it| it.0).collect();
    assert_eq!(wallets, ["first", "second", "last"]);
}

/// Peers of several processes may have the same numbers.
#[test]
fn peers_of_processes_are_told_apart() {
    let of = |pid, bytes| {
        let texts = ["10.0.0.1:8333", "inbound", "ping"].map(text);
        let payload = [Value::Unsigned(bytes), Value::bytes(Vec::new())];
        let arguments = [Value::Signed(11)].into_iter().chain(texts).chain(payload).collect();
        Event { pid, ..event(&attachment("bitcoin-core-v31", "net:inbound_message"), 1, arguments) }
    };
    let mut monitor = Monitor::default();
    let found = lines(&mut monitor, &[of(1, 8), of(2, 9), of(1, 10)]);
    assert!(found.iter().any(|line| line.contains(" 18 byte ") && line.ends_with(" process 1")), "{found:#?}");
    assert!(found.iter().any(|line| line.contains(" 9 byte ") && line.ends_with(" process 2")), "{found:#?}");
    let found = lines(&mut P2p::default(), &[of(1, 8), of(2, 9)]);
    assert!(found.iter().any(|line| line.ends_with(" 11 (inbound, 10.0.0.1:8333) of process 2")), "{found:#?}");
    // Of one process the lines are those of the scripts.
    let found = lines(&mut Monitor::default(), &[of(1, 8)]);
    assert!(!found.iter().any(|line| line.contains("process")), "{found:#?}");
}

#[test]
fn mempool_of_both_nodes() {
    let other = TXID.replace('4', "5");
    // The entry is 12.5 s before the event.
    let entry = 1_626_254_988;
    let core =
        |name: &str, arguments| event(&attachment("bitcoin-core-v31", &format!("mempool:{name}")), 500, arguments);
    let replaced = |is_txid| {
        let amounts = [Value::Signed(141), Value::Signed(282), Value::Unsigned(entry)];
        let replacement = [hash(&other), Value::Signed(100), Value::Signed(1000), Value::Bool(is_txid)];
        core("replaced", [hash(TXID)].into_iter().chain(amounts).chain(replacement).collect())
    };
    let removed = vec![hash(TXID), text("sizelimit"), Value::Signed(141), Value::Signed(282), Value::Unsigned(entry)];
    // In Tapyrus the third argument is the fee of the replacement, and the last one that of the replaced transaction.
    let swapped = vec![
        hash(TXID),
        Value::Unsigned(141),
        Value::Signed(1000),
        Value::Signed(entry.cast_signed()),
        hash(&other),
        Value::Unsigned(100),
        Value::Signed(282),
    ];
    let events = [
        core("added", vec![hash(TXID), Value::Signed(141), Value::Signed(282)]),
        core("removed", removed),
        core("rejected", vec![hash(TXID), text("min relay fee not met")]),
        replaced(true),
        replaced(false),
        event(&attachment("tapyrus", "mempool:replaced"), 500, swapped),
    ];
    let replaced = format!(
        "09:30:00Z replaced {TXID} with feerate 2.00 sat/vB received 12.5 seconds ago (282 sat, 141 vbytes) with {other} with feerate 10.00 sat/vB (1000 sat, 100 vbytes)"
    );
    let expected = [
        "Mempool Monitor",
        &format!("09:30:00Z added {TXID} with feerate 2.00 sat/vB (282 sat, 141 vbytes)"),
        &format!(
            "09:30:00Z removed {TXID} with feerate 2.00 sat/vB (282 sat, 141 vbytes) received 12.5 seconds ago: sizelimit"
        ),
        &format!("09:30:00Z rejected {TXID}: min relay fee not met"),
        &replaced,
        &replaced.replace(&other, &format!("package {other}")),
        &replaced,
        "",
        "Event count",
        " Event       total   1 min  10 min ",
        " added         1tx     1tx     1tx ",
        " removed       1tx     1tx     1tx ",
        " replaced      3tx     3tx     3tx ",
        " rejected      1tx     1tx     1tx ",
        "",
        "Event rate",
        " Event        total     1 min    10 min ",
        " added      0.1tx/s   0.1tx/s   0.1tx/s ",
        " removed    0.1tx/s   0.1tx/s   0.1tx/s ",
        " replaced   0.3tx/s   0.3tx/s   0.3tx/s ",
        " rejected   0.1tx/s   0.1tx/s   0.1tx/s ",
        "6 hits = 6 delivered + 0 dropped",
    ];
    assert_eq!(lines(&mut Mempool::new(2), &events), expected);
}

#[test]
fn rates_of_the_mempool_are_those_of_their_windows() {
    use chainscope_trace::view::View as _;

    let added = attachment("bitcoin-core-v31", "mempool:added");
    let mut mempool = Mempool::new(1);
    let mut lines = chainscope_trace::view::Lines::default();
    mempool.begin(crate::support::START, &[], &mut lines);
    // One each second for 20 minutes.
    for second in 0..1200 {
        let arguments = vec![hash(TXID), Value::Signed(1), Value::Signed(1)];
        mempool.event(&event(&added, second * 1000, arguments), &mut lines);
    }
    let [row, ..] = mempool.rows();
    assert_eq!(row.counts, [1200, 60, 600]);
    assert_eq!(row.rates.map(|rate| (rate * 100.0).round()), [100.0, 100.0, 100.0]);
    assert_eq!(mempool.recent().len(), 1);
    mempool.advance(crate::support::START.monotonic_ns + 1_260_000_000_000, &mut lines);
    assert_eq!(mempool.rows()[0].counts, [1200, 0, 539]);
}

#[test]
fn connections() {
    let of = |name: &str, last| {
        let arguments = vec![Value::Signed(3), text("1.2.3.4:5"), text("inbound"), Value::Unsigned(1), last];
        event(&attachment("bitcoin-core-v29", &format!("net:{name}")), 1, arguments)
    };
    let misbehaving = attachment("bitcoin-core-v29", "net:misbehaving_connection");
    let events = [
        of("inbound_connection", Value::Unsigned(5)),
        of("outbound_connection", Value::Unsigned(6)),
        of("closed_connection", Value::Signed(1_626_255_000)),
        of("evicted_inbound_connection", Value::Signed(1_626_255_001)),
        event(&misbehaving, 1, vec![Value::Signed(3), text("headers message size = 2001")]),
    ];
    let expected = [
        "Logging opened, closed, misbehaving, and evicted P2P connections",
        "INBOUND conn from 1.2.3.4:5: id=3, type=inbound, network=1, total=5",
        "OUTBOUND conn to 1.2.3.4:5: id=3, type=inbound, network=1, total=6",
        "CLOSED conn to 1.2.3.4:5: id=3, type=inbound, network=1, established=1626255000",
        "EVICTED conn to 1.2.3.4:5: id=3, type=inbound, network=1, established=1626255001",
        "MISBEHAVING conn id=3, message='headers message size = 2001'",
        "5 hits = 5 delivered + 0 dropped",
    ];
    assert_eq!(lines(&mut Connections, &events), expected);
}

#[test]
fn views_are_attached_to_the_tracepoints_that_they_show() {
    use chainscope_trace::{
        Pattern,
        view::{Any, Blocks, Relay, View},
    };

    let views: [Box<dyn View>; 11] = [
        Box::new(P2p::default()),
        Box::new(Raw::default()),
        Box::new(Monitor::new(false, false)),
        Box::new(Blocks::new(0, 0, 0, None).unwrap()),
        Box::new(Flushes),
        Box::new(Utxos),
        Box::new(Mempool::new(0)),
        Box::new(Coins::default()),
        Box::new(Connections),
        Box::new(Relay::default()),
        Box::new(Any::new(vec!["net:out*".parse().unwrap()], None)),
    ];
    for view in views {
        let patterns: Vec<Pattern> = view.patterns().iter().map(|pattern| pattern.parse().unwrap()).collect();
        let known = chainscope_usdt::built_in().iter().flat_map(|contract| &contract.tracepoints);
        let mut shown = 0;
        for tracepoint in known {
            let (provider, name) = (tracepoint.provider.as_str(), tracepoint.name.as_str());
            let is_attached = patterns.iter().any(|pattern| pattern.matches(provider, name));
            assert_eq!(view.selects(provider, name), is_attached, "{provider}:{name}: {patterns:?}");
            shown += usize::from(is_attached);
        }
        assert!(shown > 0, "{patterns:?}");
    }
}
