//! Programs with the tracepoints of well-known nodes, compared with their contracts.

use std::{fs, path::Path};

use chainscope_testing::fakenode::{Flavour, build_with};
use chainscope_usdt::{Contract, Finding, Image, Kind, Scalar, best_match, built_in, check, meaning};

use crate::{
    readelf,
    support::{CODE, Elf, stapsdt},
};

fn read(path: &Path) -> Image {
    let image = Image::read(fs::read(path).unwrap().as_slice()).unwrap();
    assert_eq!(image.errors, [], "{}", path.display());
    image
}

fn node(compiler: &str, flavour: Flavour) -> Image {
    let folder = tempfile::tempdir().unwrap();
    read(&build_with(folder.path(), flavour, compiler, &["-O2"]))
}

/// What a check finds, with the number of the location instead of its address.
fn findings(contract: &Contract, image: &Image) -> Vec<String> {
    let number = |name: &str, address: Option<u64>| {
        let tracepoint = image.tracepoints.iter().find(|tracepoint| tracepoint.full_name() == name);
        let locations = tracepoint.map(|tracepoint| &tracepoint.locations).into_iter().flatten();
        let at = address.and_then(|address| locations.map(|at| at.address).position(|known| known == address));
        at.map(|index| format!("#{}", index + 1)).unwrap_or_default()
    };
    let show = |finding: Finding| {
        format!("{}{}: {}", finding.tracepoint, number(&finding.tracepoint, finding.location), finding.problem)
    };
    check(contract, image).into_iter().map(show).collect()
}

fn matched(image: &Image, program: Option<&str>) -> (String, Vec<String>) {
    let found = best_match(built_in(), image, program).expect("a contract");
    (found.contract.name(), found.others.into_iter().map(Contract::name).collect())
}

fn contract(name: &str) -> &'static Contract {
    built_in().iter().find(|contract| contract.name() == name).expect("built in")
}

#[test]
fn tapyrus_differs_from_its_documentation() {
    for compiler in ["g++", "clang++"] {
        let image = node(compiler, Flavour::Tapyrus);
        assert_eq!(matched(&image, None), ("tapyrus".to_owned(), vec![]));
        assert_eq!(
            findings(contract("tapyrus"), &image),
            [
                "coin_selection:change_info#2: known deviation: the address of the value is passed instead of the value",
                "coin_selection:change_info: passes 2 arguments, 3 are documented",
                "coin_selection:change_info: documented argument 2 (position) is not passed",
                "coin_selection:change_info: argument 1 is value, which is documented as argument 3",
                "coin_selection:change_info: argument 2 is color, which is documented as argument 1",
                "coin_selection:coins_requested: passes 2 arguments, 3 are documented",
                "coin_selection:coins_requested: documented argument 1 (wallet) is not passed",
                "coin_selection:coins_requested: argument 1 is value, which is documented as argument 3",
                "coin_selection:fee_info: argument 1 is fee_paid, which is documented as argument 2",
                "coin_selection:fee_info: argument 2 is fee_needed, which is documented as argument 1",
                "coin_selection:selected_coins: argument 1 is color, which is documented as argument 2",
                "coin_selection:selected_coins: argument 2 is target, which is documented as argument 3",
                "coin_selection:selected_coins: argument 3 is total, which is documented as argument 5",
                "coin_selection:selected_coins: argument 4 (coins) is u64, documented as i64",
                "coin_selection:selected_coins: argument 5 is algorithm, which is documented as argument 1",
                "mempool:added: argument 2 (size) is u64, documented as i32",
                "mempool:removed: argument 3 (size) is u64, documented as i32",
                "mempool:removed: argument 5 (entry_time) is i64, documented as u64",
                "mempool:replaced: argument 2 (replaced_size) is u64, documented as i32",
                "mempool:replaced: argument 3 is replacement_fee, which is documented as argument 7",
                "mempool:replaced: argument 4 (replaced_entry_time) is i64, documented as u64",
                "mempool:replaced: argument 6 (replacement_size) is u64, documented as i32",
                "mempool:replaced: argument 7 is replaced_fee, which is documented as argument 3",
                "net:inbound_message: argument 5 (size) is u32, documented as u64",
                "utxocache:utxocache_add: passes 6 arguments, 5 are documented",
                "utxocache:utxocache_add: argument 3 (token) is not documented",
                "utxocache:utxocache_add: argument 1 (txid) is cstr(64), documented as bytes(64)",
                "validation:block_connected: argument 5 (sigops) is i64, documented as u64",
                "validation:block_connected: argument 6 (duration) is i64, documented as u64",
            ]
        );
    }
}

/// Whatever the compiler makes of the arguments; every note as `readelf` shows it.
#[test]
fn every_build_agrees_with_its_contract() {
    let folder = tempfile::tempdir().unwrap();
    let builds: [(&str, &[&str]); 5] = [
        ("g++", &["-O0", "-pie"]),
        ("g++", &["-O2", "-no-pie"]),
        ("g++", &["-O3", "-pie"]),
        ("clang++", &["-O0"]),
        ("clang++", &["-O2", "-no-pie"]),
    ];
    // With the number of locations and of arguments.
    let flavours = [
        (Flavour::Core(31), "bitcoin-core-v31", (20, 93)),
        (Flavour::Core(28), "bitcoin-core-v28", (15, 70)),
        (Flavour::Moneyrocket, "moneyrocket", (11, 53)),
        (Flavour::Tapyrus, "tapyrus", (17, 73)),
        (Flavour::Rippled, "rippled", (5, 15)),
    ];
    for (compiler, flags) in builds {
        for (flavour, name, counts) in flavours {
            let path = build_with(folder.path(), flavour, compiler, flags);
            let program = path.file_name().and_then(|name| name.to_str());
            let image = read(&path);
            assert_eq!(matched(&image, program).0, name, "{compiler} {flags:?}");
            let mut contradictions = check(contract(name), &image);
            contradictions.retain(|finding| !finding.problem.is_documentation());
            let codes: Vec<_> = contradictions.iter().map(|finding| finding.problem.code()).collect();
            let known: &[&str] = if flavour == Flavour::Tapyrus { &["known_deviation"] } else { &[] };
            assert_eq!(codes, known, "{compiler} {flags:?}: {contradictions:#?}");
            let (notes, arguments, unsupported) = readelf::compare(&path);
            assert_eq!(((notes, arguments), unsupported), (counts, 0), "{name} {compiler} {flags:?}");
        }
    }
}

/// Each location of one tracepoint has its own meaning.
#[test]
fn a_pointer_is_recognised_by_its_location() {
    let image = node("g++", Flavour::Tapyrus);
    let change = image.tracepoints.iter().find(|tracepoint| tracepoint.name == "change_info").unwrap();
    let expected = contract("tapyrus").tracepoint("coin_selection", "change_info").unwrap();
    let kinds: Vec<Kind> =
        change.locations.iter().map(|location| meaning(expected, location).unwrap()[0].kind).collect();
    assert_eq!(kinds, [Kind::Scalar(Scalar::I64), Kind::Pointer(Some(Scalar::I64))]);
}

#[test]
fn releases_of_bitcoin_core_are_told_apart() {
    let block = |finding: &str| format!("validation:block_connected: argument {finding}");
    let signs = [block("5 (sigops) is i64, documented as u64"), block("6 (duration) is i64, documented as u64")];
    let unit = block("6 (duration) is in ns, documented in us");
    let established = ["net:closed_connection", "net:evicted_inbound_connection"]
        .map(|name| format!("{name}: argument 5 (established) is i64, documented as u64"));
    let expected = [
        (23, "bitcoin-core-v23", vec![], signs.to_vec()),
        (24, "bitcoin-core-v24", vec![], signs.to_vec()),
        (25, "bitcoin-core-v25", vec![], [&signs[..], std::slice::from_ref(&unit)].concat()),
        (28, "bitcoin-core-v28", vec!["bitcoin-core-v27", "bitcoin-core-v26"], [&signs[..], &[unit]].concat()),
        (31, "bitcoin-core-v31", vec!["bitcoin-core-v30", "bitcoin-core-v29"], [&established[..], &signs].concat()),
    ];
    for (release, name, others, problems) in expected {
        let image = node("g++", Flavour::Core(release));
        let others: Vec<String> = others.into_iter().map(str::to_owned).collect();
        assert_eq!(matched(&image, Some("bitcoind")), (name.to_owned(), others));
        assert_eq!(findings(contract(name), &image), problems, "v{release}");
        assert_eq!(matched(&image, None).0, name, "without the name of the program");
    }
}

#[test]
fn semaphores_and_releases_that_do_not_match_are_found() {
    let image = node("g++", Flavour::Core(28));
    let found = findings(contract("bitcoin-core-v29"), &image);
    let expected = [
        "mempool:added#1: has no semaphore",
        "mempool:replaced#1: passes 7 arguments instead of 8",
        "net:misbehaving_connection: missing from the image",
    ];
    for one in expected {
        assert!(found.iter().any(|found| found == one), "{one} in {found:#?}");
    }
    let found = findings(contract("bitcoin-core-v25"), &image);
    assert!(found.contains(&"mempool:added#1: argument 2 (size) is signed 32-bit, not unsigned 64-bit".to_owned()));
    let found = findings(contract("bitcoin-core-v24"), &image);
    assert!(!found.iter().any(|found| found.starts_with("mempool")), "v24 has no such provider: {found:?}");
    let found = findings(contract("bitcoin-core-v28"), &node("g++", Flavour::Core(31)));
    assert!(found.contains(&"net:closed_connection: not in the contract".to_owned()), "{found:#?}");
}

#[test]
fn relatives_are_told_apart_by_the_name_of_the_program() {
    let image = node("g++", Flavour::Core(24));
    assert_eq!(matched(&image, Some("moneyrocketd")).0, "moneyrocket");
    assert_eq!(
        findings(contract("moneyrocket"), &image),
        [
            "validation:block_connected#1: argument 5 (sigops) is signed 64-bit, not unsigned 64-bit",
            "validation:block_connected#1: argument 6 (duration) is signed 64-bit, not unsigned 64-bit",
        ]
    );
    let moneyrocket = node("g++", Flavour::Moneyrocket);
    assert_eq!(matched(&moneyrocket, Some("moneyrocketd")), ("moneyrocket".to_owned(), vec![]));
    assert_eq!(findings(contract("moneyrocket"), &moneyrocket), [""; 0]);
    let rippled = node("clang++", Flavour::Rippled);
    assert_eq!(matched(&rippled, None), ("rippled".to_owned(), vec![]));
    assert_eq!(findings(contract("rippled"), &rippled), [""; 0]);
    let forms = crate::support::image("gcc", "tracepoint_forms.c", &["-O2"]);
    assert!(best_match(built_in(), &forms, Some("bitcoind")).is_none());
}

/// An image of one tracepoint of Tapyrus.
fn crafted(provider: &str, name: &str, arguments: &str) -> Vec<String> {
    let notes = stapsdt([CODE.0, 0x60_0000, 0], &[provider, name, arguments]);
    let found = findings(contract("tapyrus"), &Elf { notes, ..Elf::default() }.read());
    found.into_iter().filter(|finding| !finding.ends_with("missing from the image")).collect()
}

#[test]
fn order_signs_and_corrected_code_are_found() {
    assert_eq!(
        crafted("mempool", "removed", "8@%rax -8@%rbx 8@%rcx 8@%rdx -8@%rsi"),
        [
            "mempool:removed#1: passes in another order: arguments 2 4",
            "mempool:removed: argument 3 (size) is u64, documented as i32",
            "mempool:removed: argument 5 (entry_time) is i64, documented as u64",
        ]
    );
    assert_eq!(
        crafted("net", "inbound_message", "-8@%rax 8@%rbx 8@%rcx 8@%rdx 8@%rsi 8@%rdi"),
        ["net:inbound_message#1: passes what is documented, not what the contract says of the code"]
    );
    assert_eq!(
        crafted("coin_selection", "fee_info", "8@%rax -8@%xmm0"),
        [
            "coin_selection:fee_info#1: argument 1 (fee_paid) is unsigned 64-bit, not signed 64-bit: possibly a pointer to it",
            "coin_selection:fee_info#1: argument 2 cannot be read: register \"xmm0\" cannot hold it",
            "coin_selection:fee_info: argument 1 is fee_paid, which is documented as argument 2",
            "coin_selection:fee_info: argument 2 is fee_needed, which is documented as argument 1",
        ]
    );
    assert_eq!(crafted("mempool", "unheard_of", ""), ["mempool:unheard_of: not in the contract"]);
}
