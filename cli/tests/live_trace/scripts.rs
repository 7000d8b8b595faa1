//! Blocks, coins, wallets, the mempool and connections, in the formats of the scripts.

use std::{
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use chainscope_testing::fakenode::{Fired, Flavour};

use crate::support::{Node, Tool, assert_lines, nothing_lost};

const BLOCK: &str = "validation:block_connected";

/// Line of a block that takes longer than the threshold.
fn block_line(fired: &Fired, ms: i64) -> String {
    format!(
        "Block {} ({})  {:>4} tx  {:>5} ins  {:>5} sigops  took {ms:>4} ms",
        fired.show("height"),
        fired.show("hash"),
        fired.show("transactions"),
        fired.show("inputs"),
        fired.show("sigops"),
    )
}

/// A row of bpftrace's histogram.
fn row(label: &str, count: usize, most: usize) -> String {
    let bar = "@".repeat(count * 52 / most);
    format!("{label:<16}{count:>8} |{bar:<52}|")
}

/// The duration is in µs in Tapyrus and in ns in Bitcoin Core.
#[test]
fn a_benchmark_of_blocks_in_either_unit() {
    for (flavour, per_ms) in [(Flavour::Tapyrus, 1000), (Flavour::Core(31), 1_000_000), (Flavour::Core(28), 1_000_000)]
    {
        let mut node = Node::start(flavour);
        let tool = node.trace(&["blocks", "101", "104", "3"], &[BLOCK]);
        let milliseconds = [9, 2, 0, 5, 17];
        let fired: Vec<Fired> = (100..)
            .zip(milliseconds)
            .map(|(height, ms)| {
                // Time for the block to have been connected in, and for the last one to be in a second of its own.
                node.node.execute(if height == 104 { "pause 1100" } else { "pause 20" });
                let duration = ms * per_ms + per_ms / 2;
                node.node.fire(&format!(
                    "{BLOCK} hash={height} height={height} transactions=1234 inputs=5678 sigops=9012 duration={duration}"
                ))
            })
            .collect();
        let output = tool.output();
        let (bench, others): (Vec<&str>, Vec<&str>) = output.lines().partition(|line| line.starts_with("BENCH "));
        let took = others.iter().find_map(|line| line.strip_prefix("Took ")).expect("the end");
        let took: u64 = took.split(' ').next().unwrap().parse().unwrap();
        let (first, last) = (&fired[1], &fired[4]);
        let bounds = (last.before_ns - first.after_ns) / 1_000_000..=(last.after_ns - first.before_ns) / 1_000_000;
        assert!(bounds.contains(&took), "{took} ms in {bounds:?}");
        let expected = [
            "ConnectBlock benchmark between height 101 and 104 inclusive".to_owned(),
            "Logging blocks taking longer than 3 ms to connect.".to_owned(),
            block_line(&fired[0], 9),
            "Starting Connect Block Benchmark between height 101 and 104.".to_owned(),
            block_line(&fired[3], 5),
            block_line(&fired[4], 17),
            String::new(),
            format!("Took {took} ms to connect the blocks between height 101 and 104."),
            String::new(),
            "Histogram of block connection times in milliseconds (ms).".to_owned(),
            "@durations: ".to_owned(),
            row("[0]", 1, 1),
            row("[1]", 0, 1),
            row("[2, 4)", 1, 1),
            row("[4, 8)", 1, 1),
            row("[8, 16)", 0, 1),
            row("[16, 32)", 1, 1),
        ];
        let found: Vec<String> = others.iter().take(expected.len()).map(|line| (*line).to_owned()).collect();
        assert_eq!(found, expected, "{flavour:?}");
        assert_eq!(others.last().copied(), Some(&*nothing_lost(5)));
        // Each second with blocks has a line, if it ended before the last block: in sum those of the others.
        let numbers: Vec<Vec<u64>> = bench
            .iter()
            .map(|line| line.split(|it: char| !it.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect())
            .collect();
        let sum = |column: usize| numbers.iter().map(|row| row[column]).sum::<u64>();
        assert_eq!([sum(0), sum(1), sum(2), sum(3)], [3, 3 * 1234, 3 * 5678, 3 * 9012], "{bench:?}");
        for (line, row) in bench.iter().zip(&numbers) {
            let [blocks, transactions, inputs, sigops, height] = row[..] else { panic!("{line}") };
            let expected = format!(
                "BENCH {blocks:4} blk/s {transactions:6} tx/s {inputs:7} inputs/s {sigops:8} sigops/s (height {height})"
            );
            assert_eq!(**line, *expected);
        }
        assert_eq!(numbers.last().map(|row| row[4]), Some(103), "{bench:?}");
    }
}

/// A recording is a run that is kept: replayed it has the same lines and percentiles, and can be asked for other ranges.
#[test]
fn a_benchmark_is_kept_by_its_recording() {
    let folder = tempfile::tempdir().unwrap();
    for (json, threshold) in [(None, "3"), (Some("--json"), "0")] {
        let recording = folder.path().join(format!("{threshold}.trace"));
        let recording = recording.to_str().unwrap();
        let arguments = [&["blocks", "0", "0", threshold][..], json.as_slice()].concat();
        let mut node = Node::start(Flavour::Core(31));
        let tool = node.trace(&[&arguments[..], &["--record", recording]].concat(), &[BLOCK]);
        for (height, ms) in (100..).zip([9, 2, 3, 5, 17, 1, 6, 7, 8, 40]) {
            node.node.execute("pause 45");
            node.node.fire(&format!("{BLOCK} hash={height} height={height} duration={}", ms * 1_000_000));
        }
        // Over the end of a second.
        node.node.execute("pause 1100");
        let live = tool.interrupt();
        let replayed = Tool::start(&[&["replay", recording][..], &arguments].concat()).output();
        assert_eq!(replayed, live);
        match json {
            None => {
                let percentiles = "10 blocks: min 1.000 ms, p50 6.000 ms, p90 17.000 ms, p99 40.000 ms, max 40.000 ms";
                assert!(live.lines().any(|line| line == percentiles), "{live}");
                let blocks = live.lines().filter_map(|line| line.strip_prefix("BENCH ")?.trim().split(' ').next());
                assert_eq!(blocks.map(|count| count.parse::<u64>().unwrap()).sum::<u64>(), 10, "{live}");
            }
            Some(_) => {
                let summary: serde_json::Value = serde_json::from_str(live.lines().next_back().unwrap()).unwrap();
                assert_eq!(summary["summary"]["blocks"], 10, "{summary}");
                assert_eq!(summary["summary"]["duration_ns"]["p90"], 17_000_000, "{summary}");
            }
        }
        let other = Tool::start(&["replay", recording, "blocks", "103", "105", "0"]).output();
        assert!(other.lines().any(|line| line.starts_with("3 blocks: min 1.000 ms, p50 5.000 ms")), "{other}");
    }
}

/// Which unit the first block has is known from when the process was started; the recording has that, and which build it runs.
#[test]
fn the_first_block_is_compared_with_the_age_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("blocks.trace");
    let recording = recording.to_str().unwrap();
    let mut node = Node::start(Flavour::Moneyrocket);
    let began = now();
    let tool = node.trace(&["blocks", "0", "0", "0", "--record", recording], &[BLOCK]);
    // 50 s, or an hour, if it were µs.
    for duration in [50_000_000, 3_600_000_000_i64] {
        node.node.fire(&format!("{BLOCK} hash=1 height=7 duration={duration}"));
    }
    let output = tool.interrupt();
    let note = output.lines().find(|line| line.starts_with("Note: ")).unwrap_or_else(|| panic!("{output}"));
    assert!(note.starts_with("Note: durations are taken as ns: block 7 would have taken 50000 ms, "), "{note}");
    assert!(note.contains(" ms after the start of the process. "), "{note}");
    assert!(output.contains("  took   50 ms"), "{output}");
    let replayed = Tool::start(&["replay", recording, "blocks", "0", "0", "0"]).output();
    assert_eq!(replayed, output);
    let info: serde_json::Value = serde_json::from_str(&Tool::start(&["info", recording, "--json"]).output()).unwrap();
    let image = chainscope_usdt::Image::read(std::fs::read(&node.program).unwrap().as_slice()).unwrap();
    assert!(image.build_id.is_some());
    assert_eq!(info["programs"][0]["build_id"], serde_json::json!(image.build_id_hex()), "{info}");
    let process = &info["processes"][0];
    assert_eq!(process["pid"], node.node.pid());
    let date = Command::new("date").args(["-d", process["start"].as_str().unwrap(), "+%s.%N"]).output().unwrap();
    let start: f64 = String::from_utf8(date.stdout).unwrap().trim().parse().unwrap();
    let age = began.as_secs_f64() - start;
    assert!((-1.0..30.0).contains(&age), "{age} s");
}

#[test]
fn flushes_of_the_cache() {
    let columns = |mode: usize, values: [&str; 5]| {
        let [duration, name, coins, memory, prune] = values;
        format!("{duration:<15} {name:<mode$} {coins:<15} {memory:<15} {prune:<8}")
    };
    let cases = [
        (
            Flavour::Core(31),
            "utxocache:flush",
            12,
            "Flush for Prune",
            ["NONE", "PERIODIC", "FORCE_FLUSH", "FORCE_SYNC"],
        ),
        (Flavour::Core(28), "utxocache:flush", 12, "Flush for Prune", ["NONE", "PERIODIC", "ALWAYS", "4"]),
        (Flavour::Tapyrus, "utxocache:utxocache_flush", 10, "Prune", ["NONE", "PERIODIC", "ALWAYS", "4"]),
    ];
    for (flavour, name, width, prune, modes) in cases {
        let mut node = Node::start(flavour);
        let tool = node.trace(&["utxocache"], &[name]);
        let fired: Vec<Fired> = [0, 2, 3, 4]
            .into_iter()
            .map(|mode| {
                let settings = format!("duration=73045{mode} mode={mode} coins=22990 memory=332354{mode}");
                node.node.fire(&format!("{name} {settings} for_prune={}", mode == 2))
            })
            .collect();
        let heading = columns(width, ["Duration (µs)", "Mode", "Coins Count", "Memory Usage", prune]);
        let expected: Vec<String> = fired
            .iter()
            .zip(modes)
            .map(|(fired, mode)| {
                let memory = format!("{:.2} kB", fired.number_of("memory") as f64 / 1000.0);
                let for_prune = if fired.show("for_prune") == "true" { "True" } else { "False" };
                columns(width, [&fired.show("duration"), mode, &fired.show("coins"), &memory, for_prune])
            })
            .collect();
        assert_lines(&tool.interrupt(), &["Logging utxocache flushes. Ctrl-C to end...", &heading], &expected, 4);
    }
}

#[test]
fn coins_of_the_cache() {
    let is_coinbase = |fired: &Fired| if fired.show("is_coinbase") == "true" { "Yes" } else { "No" };
    let mut node = Node::start(Flavour::Core(31));
    let names = ["utxocache:add", "utxocache:spent", "utxocache:uncache"];
    let tool = node.trace(&["utxos"], &names);
    let fired: Vec<Fired> = (1..)
        .zip(names)
        .map(|(number, name)| {
            let settings = format!("txid={number} index={} height=4294967295", number * 1_431_655_765_u64);
            node.node.fire(&format!("{name} {settings} value=-{number} is_coinbase={}", number == 1))
        })
        .collect();
    let operations = ["Added   ", "Spent   ", "Uncache "];
    let expected: Vec<String> = operations
        .iter()
        .zip(&fired)
        .map(|(operation, fired)| {
            format!(
                "{operation}{}:{:<6} {:>16} {:>7} {}",
                fired.show("txid"),
                fired.show("index"),
                fired.show("value"),
                fired.show("height"),
                is_coinbase(fired)
            )
        })
        .collect();
    let heading = format!("{:<7} {:<71} {:>16} {:>7} {:>8}", "OP", "Outpoint", "Value", "Height", "Coinbase");
    assert_lines(&tool.interrupt(), &[&heading], &expected, 3);

    let mut node = Node::start(Flavour::Tapyrus);
    let names = names.map(|name| name.replace(':', ":utxocache_"));
    let tool = node.trace(&["utxos"], &names.each_ref().map(String::as_str));
    let token = format!("c3{}", "5a".repeat(32));
    let fired: Vec<Fired> = names
        .iter()
        .zip(["TPC", &token, &token])
        .map(|(name, token)| node.node.fire(&format!("{name} txid={} token={token} is_coinbase=true", "7b".repeat(32))))
        .collect();
    let expected: Vec<String> = operations
        .iter()
        .zip(&fired)
        .map(|(operation, fired)| {
            format!(
                "{operation}:{} {:<6} {} {:>16} {:>7} {}",
                fired.show("txid"),
                fired.show("index"),
                fired.show("token"),
                fired.show("value"),
                fired.show("height"),
                is_coinbase(fired)
            )
        })
        .collect();
    let columns = ["OP", "Outpoint", "Token", "Value", "Height", "Coinbase"];
    let [a, b, c, d, e, f] = columns;
    let heading = format!("{a:<7} {b:<70} {c:>30} {d:>16} {e:>7} {f:>8}");
    assert_lines(&tool.interrupt(), &[&heading], &expected, 3);
}

/// With the value of a change of which the code passes the address, signed values, and whole colors.
#[test]
fn coin_selection_of_tapyrus() {
    let names =
        ["coins_requested", "selected_coins", "change_info", "fee_info"].map(|name| format!("coin_selection:{name}"));
    let mut node = Node::start(Flavour::Tapyrus);
    let tool = node.trace(&["coins"], &names.each_ref().map(String::as_str));
    let mut fire = |what: &str| node.node.fire(&format!("coin_selection:{what}"));
    let requested = fire("coins_requested value=-1");
    let selected = fire("selected_coins target=7 total=9 coins=2 algorithm=knapsack");
    let colored = fire("change_info value=12346");
    let native = fire("change_info#2 value=12345");
    let fee = fire("fee_info fee_paid=10380 fee_needed=9000");
    let other_fee = fire("fee_info#2 fee_paid=-5 fee_needed=6");
    let color = requested.show("color");
    let change = |fired: &Fired| format!("Change [{}] : value [{}]", fired.show("color"), fired.show("value"));
    let fees =
        |fired: &Fired| format!("Fee [TPC] : value [{}] need [{}]", fired.show("fee_paid"), fired.show("fee_needed"));
    let expected = [
        format!("Request [{}] : value [{}]", requested.show("color"), requested.show("value")),
        format!(
            "Select [{}]: try to select [{}] using [{}] coins of total value [{}] algorithm tried is [{}]",
            selected.show("color"),
            selected.show("target"),
            selected.show("coins"),
            selected.show("total"),
            selected.show("algorithm"),
        ),
        change(&colored),
        change(&native),
        fees(&fee),
        format!(
            "Transaction : fee [10380] need [9000] color [TPC] change [12345] color [{color}] requested [-1] change [12346] \
             algorithm [knapsack] target [7] selected [9] coins [2]"
        ),
        fees(&other_fee),
        "Transaction : fee [-5] need [6]".to_owned(),
    ];
    assert_eq!((native.location, native.show("value")), (2, "12345".to_owned()));
    assert_lines(&tool.interrupt(), &["Logging Coin selection "], &expected, 6);
}

/// Attempts of transactions: a normal one, and one that avoids partial spends, which is used or not; of two wallets.
#[test]
fn coin_selection_of_bitcoin_core() {
    let names = ["selected_coins", "normal_create_tx_internal", "attempting_aps_create_tx", "aps_create_tx_internal"]
        .map(|name| format!("coin_selection:{name}"));
    for json in [false, true] {
        let mut node = Node::start(Flavour::Core(31));
        let flags: &[&str] = if json { &["--json"] } else { &[] };
        let tool = node.trace(&[&["coins"], flags].concat(), &names.each_ref().map(String::as_str));
        let fired = [
            "selected_coins wallet=hot algorithm=bnb target=1000 waste=-7 selected=1500",
            "normal_create_tx_internal wallet=hot success=true fee=140 change_position=-1",
            "selected_coins wallet=cold algorithm=srd target=7 waste=1 selected=9",
            "normal_create_tx_internal wallet=cold success=true fee=141 change_position=1",
            "attempting_aps_create_tx wallet=cold",
            "selected_coins wallet=cold algorithm=knapsack target=7 waste=2 selected=8",
            "aps_create_tx_internal wallet=cold is_used=true success=true fee=142 change_position=0",
            "selected_coins wallet=hot algorithm=cg target=20 waste=3 selected=21",
            "normal_create_tx_internal wallet=hot success=true fee=143 change_position=2",
            "attempting_aps_create_tx wallet=hot",
            "selected_coins wallet=hot algorithm=manual target=20 waste=3 selected=22",
            "aps_create_tx_internal wallet=hot is_used=false success=true fee=144 change_position=0",
            "selected_coins wallet=hot algorithm=bnb target=5 waste=0 selected=0",
            "normal_create_tx_internal wallet=hot success=false fee=0 change_position=-1",
        ]
        .map(|command| node.node.fire(&format!("coin_selection:{command}")));
        let output = tool.interrupt();
        if json {
            let last: serde_json::Value = serde_json::from_str(output.lines().next_back().unwrap()).unwrap();
            let found = |one: &serde_json::Value| {
                assert_eq!((&one["pid"], &one["tid"]), (&fired[0].pid.into(), &fired[0].tid.into()));
                ["wallet", "state", "avoids_partial_spends", "fee", "algorithm"]
                    .map(|name| one[name].to_string())
                    .join(" ")
            };
            let transactions = last["summary"]["transactions"].as_array().unwrap();
            let expected = [
                r#""hot" "created" false 140 "bnb""#,
                r#""cold" "created" true 142 "knapsack""#,
                r#""hot" "created" false 143 "cg""#,
                r#""hot" "failed" false null "bnb""#,
            ];
            assert_eq!(transactions.iter().map(found).collect::<Vec<_>>(), expected, "{last:#}");
            assert_eq!((&last["summary"]["count"], &last["events"]), (&4.into(), &fired.len().into()));
            continue;
        }
        let expected = [
            "Select [hot]: try to select [1000] total value [1500] waste [-7] algorithm tried is [bnb]",
            "Create [hot] : success [true] fee [140] change position [-1]",
            "Transaction [hot] : normal fee [140] change position [-1] algorithm [bnb] target [1000] selected [1500]",
            "Select [cold]: try to select [7] total value [9] waste [1] algorithm tried is [srd]",
            "Create [cold] : success [true] fee [141] change position [1]",
            "Avoid partial spends [cold] : attempt",
            "Select [cold]: try to select [7] total value [8] waste [2] algorithm tried is [knapsack]",
            "Avoid partial spends [cold] : used [true] success [true] fee [142] change position [0]",
            "Transaction [cold] : avoiding partial spends fee [142] change position [0] algorithm [knapsack] target [7] selected [8]",
            "Select [hot]: try to select [20] total value [21] waste [3] algorithm tried is [cg]",
            "Create [hot] : success [true] fee [143] change position [2]",
            "Avoid partial spends [hot] : attempt",
            "Select [hot]: try to select [20] total value [22] waste [3] algorithm tried is [manual]",
            "Avoid partial spends [hot] : used [false] success [true] fee [144] change position [0]",
            "Transaction [hot] : normal fee [143] change position [2] algorithm [cg] target [20] selected [21]",
            "Select [hot]: try to select [5] total value [0] waste [0] algorithm tried is [bnb]",
            "Create [hot] : success [false] fee [0] change position [-1]",
            "Transaction [hot] : failed algorithm [bnb] target [5] selected [0]",
        ]
        .map(str::to_owned);
        assert_lines(&output, &["Logging Coin selection "], &expected, fired.len());
    }
}

#[test]
fn connections_of_peers() {
    let names = ["inbound", "outbound", "evicted_inbound", "closed", "misbehaving"]
        .map(|name| format!("net:{name}_connection"));
    let mut node = Node::start(Flavour::Core(31));
    let tool = node.trace(&["connections"], &names.each_ref().map(String::as_str));
    let fired: Vec<Fired> = names.iter().map(|name| node.node.fire(&format!("{name} peer_id=77"))).collect();
    let line = |words: &str, key: &str, value: &str, fired: &Fired| {
        let [address, id] = ["address", "peer_id"].map(|name| fired.show(name));
        let [kind, network, last] = ["connection_type", "network", value].map(|name| fired.show(name));
        format!("{words} {address}: id={id}, type={kind}, network={network}, {key}={last}")
    };
    let expected = [
        line("INBOUND conn from", "total", "connections", &fired[0]),
        line("OUTBOUND conn to", "total", "connections", &fired[1]),
        line("EVICTED conn to", "established", "established", &fired[2]),
        line("CLOSED conn to", "established", "established", &fired[3]),
        format!("MISBEHAVING conn id={}, message='{}'", fired[4].show("peer_id"), fired[4].show("reason")),
    ];
    let heading = "Logging opened, closed, misbehaving, and evicted P2P connections";
    assert_lines(&tool.interrupt(), &[heading], &expected, 5);
}

/// Seconds since 1970.
fn now() -> Duration {
    #[expect(clippy::disallowed_methods, reason = "compared with time stamps")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).unwrap()
}

/// Splits the time off a line, which has to be between two others.
#[track_caller]
fn at_time(line: &str, between: [Duration; 2]) -> &str {
    let (time, rest) = line.split_once(' ').unwrap();
    let is_it = |seconds: u64| {
        let of_day = seconds % 86_400;
        time == format!("{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
    };
    assert!((between[0].as_secs()..=between[1].as_secs()).any(is_it), "{line}");
    rest
}

/// Takes the seconds since a transaction was received out of a line, which have to be right.
#[track_caller]
fn without_age(line: &str, received: i64, between: [Duration; 2]) -> String {
    let (start, rest) = line.split_once("received ").unwrap();
    let (age, rest) = rest.split_once(" seconds ago").unwrap();
    let age: f64 = age.parse().unwrap();
    let [least, most] = between.map(|time| time.as_secs_f64() - received as f64);
    assert!((least - 0.1..=most + 0.1).contains(&age), "{age} s in {line}");
    format!("{start}received AGE seconds ago{rest}")
}

fn fee(fired: &Fired, fee: &str, size: &str) -> (String, String) {
    let (fee, size) = (fired.number_of(fee), fired.number_of(size));
    (format!("feerate {:.2} sat/vB", fee as f64 / size as f64), format!("({fee} sat, {size} vbytes)"))
}

/// The four events, the swapped fees of Tapyrus among them.
#[test]
fn events_of_the_mempool() {
    let names = ["added", "removed", "rejected", "replaced"].map(|name| format!("mempool:{name}"));
    for (flavour, replacement) in [
        (Flavour::Core(31), "replacement_id"),
        (Flavour::Core(28), "replacement_id"),
        (Flavour::Core(25), "replacement_id"),
        (Flavour::Tapyrus, "replacement_txid"),
    ] {
        let mut node = Node::start(flavour);
        let tool = node.trace(&["mempool"], &names.each_ref().map(String::as_str));
        let begin = now();
        let received = i64::try_from(begin.as_secs()).unwrap() - 100;
        let fired = [
            "mempool:added txid=5 size=141 fee=1000".to_owned(),
            format!("mempool:removed txid=6 reason=sizelimit size=333 fee=-1 entry_time={received}"),
            "mempool:rejected txid=7 reason=@length:118".to_owned(),
            format!(
                "mempool:replaced replaced_txid=8 replaced_size=225 replaced_fee=10380 replaced_entry_time={received} \
                 {replacement}=9 replacement_size=226 replacement_fee=12975"
            ),
        ]
        .map(|command| node.node.fire(&command));
        let output = tool.interrupt();
        let between = [begin, now()];
        let mut lines = output.lines();
        assert_eq!(lines.next(), Some("Mempool Monitor"));
        let found: Vec<&str> = lines.take(4).map(|line| at_time(line, between)).collect();

        let (rate, amounts) = fee(&fired[0], "fee", "size");
        assert_eq!(found[0], format!("added {} with {rate} {amounts}", fired[0].show("txid")));
        let (rate, amounts) = fee(&fired[1], "fee", "size");
        let expected =
            format!("removed {} with {rate} {amounts} received AGE seconds ago: sizelimit", fired[1].show("txid"));
        assert_eq!(without_age(found[1], received, between), expected);
        assert_eq!(found[2], format!("rejected {}: {}", fired[2].show("txid"), fired[2].show("reason")));
        let (rate, amounts) = fee(&fired[3], "replaced_fee", "replaced_size");
        let (new_rate, new_amounts) = fee(&fired[3], "replacement_fee", "replacement_size");
        let expected = format!(
            "replaced {} with {rate} received AGE seconds ago {amounts} with {} with {new_rate} {new_amounts}",
            fired[3].show("replaced_txid"),
            fired[3].show(replacement),
        );
        assert_eq!(without_age(found[3], received, between), expected, "{flavour:?}");
        for name in ["added", "removed", "replaced", "rejected"] {
            let row = format!(" {name:<8} {:>6}tx {:>5}tx {:>5}tx ", 1, 1, 1);
            assert!(output.lines().any(|line| line == row), "{row} in {output}");
        }
        assert_eq!(output.lines().next_back(), Some(&*nothing_lost(4)));
    }
}
