//! Compares every rule of real files with `readelf --debug-dump=frames-interp`.

#![expect(clippy::print_stdout, reason = "the number of rows that agree")]

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use chainscope_unwind::{CfaKind, Limits, Row, Table};

/// A row of readelf's output: address, CFA, rbp and return address.
struct Line {
    address: u64,
    cfa: String,
    rbp: Option<String>,
    ra: String,
}

/// Parses readelf's output: for each function a heading with the column names, then one line per row.
fn lines(path: &Path) -> Vec<Line> {
    let output = Command::new("readelf").arg("--debug-dump=frames-interp").arg(path).output().expect("binutils");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut columns: Vec<String> = Vec::new();
    let mut is_function = false;
    let mut found = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if line.contains(" FDE ") || line.contains(" CIE ") {
            is_function = line.contains(" FDE ");
        } else if words.first() == Some(&"LOC") {
            columns = words.iter().map(|&word| word.to_owned()).collect();
        } else if is_function
            && words.len() == columns.len()
            && let Ok(address) = u64::from_str_radix(words[0], 16)
        {
            let by_name: HashMap<&str, &str> = columns.iter().map(String::as_str).zip(words).collect();
            found.push(Line {
                address,
                cfa: by_name["CFA"].to_owned(),
                rbp: by_name.get("rbp").map(|&text| text.to_owned()),
                ra: by_name["ra"].to_owned(),
            });
        }
    }
    found
}

fn agrees(line: &Line, row: &Row) -> bool {
    let offset = |register: &str| line.cfa.strip_prefix(register).and_then(|text| text.parse::<i32>().ok());
    let cfa = match row.kind() {
        CfaKind::Rsp => offset("rsp") == Some(row.offset()),
        CfaKind::Rbp => offset("rbp") == Some(row.offset()),
        CfaKind::Rbx => offset("rbx") == Some(row.offset()),
        CfaKind::R10 => offset("r10") == Some(row.offset()),
        CfaKind::R11 => offset("r11") == Some(row.offset()),
        CfaKind::DerefRsp | CfaKind::DerefRbp | CfaKind::DerefTwiceRsp | CfaKind::Plt | CfaKind::Signal => {
            line.cfa == "exp"
        }
        CfaKind::End => line.ra == "u",
        CfaKind::Unsupported => !["rsp", "rbp", "rbx", "r10", "r11"].iter().any(|register| offset(register).is_some()),
        CfaKind::Gap | CfaKind::Leaf => false,
    };
    let rbp = match (line.rbp.as_deref(), row.rbp_kind) {
        (None | Some("u" | "s"), 0) => true,
        (Some("exp"), 2) => true,
        (Some(text), 1) => text.strip_prefix('c').and_then(|text| text.parse().ok()) == Some(i32::from(row.rbp) * 8),
        _ => false,
    };
    let irrelevant = matches!(row.kind(), CfaKind::End | CfaKind::Unsupported | CfaKind::Signal);
    cfa && (rbp || irrelevant)
}

fn compare(path: &Path) {
    let bytes = std::fs::read(path).expect("it is there");
    let table = Table::read(bytes.as_slice(), &Limits::default()).expect("an unwind table");
    assert!(table.rows().is_sorted_by(|a, b| a.pc < b.pc));
    let lines = lines(path);
    assert!(lines.len() > 1000, "{} has {} rows", path.display(), lines.len());
    // The last of several rows for one address applies.
    let last: BTreeMap<u64, &Line> = lines.iter().map(|line| (line.address, line)).collect();
    let wrong: Vec<String> = last
        .values()
        .filter_map(|line| match table.lookup(line.address) {
            Some(row) if agrees(line, row) => None,
            row => Some(format!("{:#x}: {} rbp {:?}: {row:?}", line.address, line.cfa, line.rbp)),
        })
        .collect();
    // Overlapping functions: readelf prints both, a table keeps one.
    assert!(wrong.len() * 1000 <= last.len(), "{} of {}: {:?}", wrong.len(), last.len(), wrong.get(..5));
    println!("{}: {} rows agree, {} do not: {wrong:?}", path.display(), last.len() - wrong.len(), wrong.len());
}

fn mapped(name: &str) -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable procfs");
    let path = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains(name));
    PathBuf::from(path.expect("it is mapped"))
}

#[test]
fn own_executable() {
    compare(&std::env::current_exe().expect("our own path"));
}

#[test]
fn c_library() {
    compare(&mapped("/libc.so"));
}

#[test]
fn dynamic_linker() {
    compare(&mapped("/ld-linux"));
}
