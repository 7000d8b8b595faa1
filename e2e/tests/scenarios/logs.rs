//! Log messages through the real program: those of a file are stored exactly once, those of syslog are stored or counted.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};

use chainscope_e2e::harness::api::{Api, id};
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::{free_port, wait};
use serde_json::Value;

const NODE: &str = "octez";

/// A node that writes numbered messages to a file, and rotates it as logrotate does.
struct Writer {
    path: PathBuf,
    file: File,
    written: u64,
    rotations: u32,
}

impl Writer {
    fn new(path: PathBuf) -> Self {
        let file = append(&path);
        Self { path, file, written: 0, rotations: 0 }
    }

    fn write(&mut self, lines: u64) {
        for number in self.written..self.written + lines {
            let second = number % 60;
            writeln!(self.file, "Nov 24 13:56:{second:02}.469 NOTICE │ message {number}").expect("the log is written");
        }
        self.written += lines;
    }

    /// Renames the file and begins another one.
    fn rotate(&mut self) {
        self.rotations += 1;
        fs::rename(&self.path, format!("{}.{}", self.path.display(), self.rotations)).expect("renamed");
        self.file = append(&self.path);
    }

    /// Empties the file in place.
    fn truncate(&mut self) {
        self.file.set_len(0).expect("truncated");
    }
}

fn append(path: &Path) -> File {
    OpenOptions::new().create(true).append(true).open(path).expect("a log file")
}

/// The numbers of all stored messages, by id.
fn stored(api: &Api) -> Vec<u64> {
    let mut numbers = Vec::new();
    let mut cursor = 0;
    loop {
        let page = rows(api, &format!("direction=forward&limit=1000&cursor={cursor}"));
        for row in &page {
            assert_eq!(id(row), cursor, "ids are dense");
            cursor += 1;
            let text = row["message"].as_str().expect("a text");
            numbers.push(text.strip_prefix("message ").and_then(|number| number.parse().ok()).expect(text));
        }
        if page.len() < 1000 {
            return numbers;
        }
    }
}

fn rows(api: &Api, query: &str) -> Vec<Value> {
    match api.get(&format!("/v2/log?node_name={NODE}&{query}")) {
        Value::Array(rows) => rows,
        other => panic!("not a list: {other}"),
    }
}

fn count(api: &Api) -> u64 {
    rows(api, "limit=1").first().map_or(0, |row| id(row) + 1)
}

#[test]
fn every_line_of_a_file_is_stored_exactly_once() {
    let mut machine = Machine::new("auto");
    let path = machine.path("node.log");
    machine.observe_with(NODE, free_port(), &format!("logs = {{ file = {:?} }}", path.display().to_string()));
    let mut writer = Writer::new(path);
    writer.write(3_000);
    let mut chainscope = machine.start();
    for round in 0..6 {
        writer.write(2_000);
        // In the middle of what was written, whatever of it is on the way.
        let least = writer.written - 1_500;
        wait::until_true("messages", || count(&chainscope.api) >= least);
        if round % 2 == 0 {
            writer.write(2_000);
            chainscope.program.kill();
            writer.write(500);
            writer.rotate();
            writer.write(500);
            chainscope = machine.start();
        } else {
            writer.rotate();
        }
    }
    wait::until_true("all messages", || count(&chainscope.api) >= writer.written);
    // All of it has been read: what is written after the truncation is new.
    writer.truncate();
    writer.write(1_000);
    wait::until_true("the messages after the truncation", || count(&chainscope.api) >= writer.written);
    let stored = stored(&chainscope.api);
    let unexpected = stored.iter().zip(0..).find(|(number, expected)| **number != *expected);
    assert_eq!((unexpected, stored.len() as u64), (None, writer.written), "(message, its place)");
}

#[test]
fn messages_of_syslog_are_stored_or_counted_and_found_by_their_text() {
    const MESSAGES: u64 = 200_000;
    let mut machine = Machine::new("auto");
    let port = free_port();
    machine.observe_with(NODE, free_port(), &format!("logs = {{ syslog = {{ listen = \"127.0.0.1:{port}\" }} }}"));
    let chainscope = machine.start();
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for number in 0..MESSAGES {
        let message =
            format!("<27>1 2021-07-14T12:00:00Z host octez-node 665 - - Jul 14 12:00:00.000 WARN message {number}");
        socket.send_to(message.as_bytes(), ("127.0.0.1", port)).expect("sent");
    }
    let lost =
        || chainscope.api.stats()["nodes"][0]["totals"]["lost_records"].as_u64().expect("a number of lost records");
    wait::until_within(wait::WAIT_TIMEOUT * 3, "each message stored or counted", || {
        (count(&chainscope.api) + lost() == MESSAGES).then_some(())
    });
    let stored = stored(&chainscope.api);
    assert!(stored.is_sorted_by(|one, next| one < next), "in order, each once");
    let last = stored.last().expect("some arrived");
    wait::until_true("the last one to be found", || rows(&chainscope.api, &format!("query={last}")).len() == 1);
    assert_eq!(rows(&chainscope.api, &format!("query={last}"))[0]["level"], "Warning");
}
