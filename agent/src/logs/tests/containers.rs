//! What containers print, as their runtimes write it.

use std::{fs, io::Write as _, path::PathBuf};

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;

use super::files::Stage;
use crate::{config::ContainerLogs, logs::files::location::LogLocation};

fn dirs(logs: PathBuf) -> ContainerLogs {
    ContainerLogs { pods: logs.clone(), docker: logs.join("docker"), links: logs.join("links") }
}

/// A container of a pod; its files are in `a_b_c/node`.
fn pod() -> Stage {
    let stage = Stage::new(|logs| LogLocation::pod(&dirs(logs), "a_b_c/node"), &["edsk\\w+"]);
    fs::create_dir_all(stage.path("a_b_c/node")).unwrap();
    stage
}

fn file(name: &str) -> String {
    format!("a_b_c/node/{name}")
}

/// Time of the runtime, which is different for each line.
fn time(number: usize) -> String {
    format!("2026-01-02T{:02}:{:02}:{:02}.{number:09}Z", number / 3600, number / 60 % 60, number % 60)
}

fn cri(number: usize, stream: &str, tag: &str, text: &str) -> String {
    format!("{} {stream} {tag} {text}\n", time(number))
}

#[test]
fn parts_are_joined_within_their_stream() {
    let mut stage = pod();
    for (number, (stream, tag, text)) in [
        ("stdout", "P", "a long "),
        ("stderr", "P", "trouble "),
        ("stdout", "P", "line edsk"),
        ("stdout", "F", "12 of it"),
        ("stderr", "F", "ahead"),
        ("stdout", "F", "Apr 27 08:29:09.000: first"),
        ("stderr", "F", "between"),
        ("stdout", "F", "  second"),
        ("stdout", "F", "<003> 2021-07-14T12:00:00.000-00:00 [p2p] of its own time"),
    ]
    .into_iter()
    .enumerate()
    {
        stage.append(&file("0.log"), cri(number, stream, tag, text).as_bytes());
    }
    stage.append(&file("0.log"), b"not of a runtime\n");
    stage.drain();
    let stored = stage.sink.stored("node");
    let of = |source: &str| -> Vec<String> {
        let of = stored.iter().filter(|message| message.source == source);
        of.map(|message| String::from_utf8_lossy(&message.raw).into_owned()).collect()
    };
    assert_eq!(of("stderr"), ["trouble ahead", "between"]);
    assert_eq!(
        of("stdout"),
        [
            "a long line [redacted] of it",
            "Apr 27 08:29:09.000: first\n  second",
            "<003> 2021-07-14T12:00:00.000-00:00 [p2p] of its own time",
            "not of a runtime"
        ]
    );
    let time_of = |text: &str| {
        let found = stage
            .sink
            .records()
            .into_iter()
            .find(|record| format!("{record:?}").contains(&format!("{:?}", text.as_bytes())));
        found.map(|record| record.time_ns)
    };
    // 2026-01-02T00:00:01.000000001Z: that of the first part; a message with a time has its own.
    assert_eq!(time_of("trouble ahead"), Some(1_767_312_001_000_000_001));
    let own = "<003> 2021-07-14T12:00:00.000-00:00 [p2p] of its own time";
    assert_eq!(time_of(own), Some(1_626_264_000_000_000_000));
}

#[test]
fn restarts_rotation_and_compression_are_followed() {
    let mut stage = pod();
    let line = |number: usize| cri(number, "stdout", "F", &format!("line {number}"));
    let compress = |stage: &Stage, name: &str| {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&fs::read(stage.path(&file(name))).unwrap()).unwrap();
        fs::write(stage.path(&file(&format!("{name}.gz"))), gzip.finish().unwrap()).unwrap();
        fs::remove_file(stage.path(&file(name))).unwrap();
    };
    // Before anyone reads: a compressed file, a rotated one, the current one.
    stage.append(&file("0.log.20260102-000000"), (line(1) + &line(2)).as_bytes());
    compress(&stage, "0.log.20260102-000000");
    stage.append(&file("0.log.20260102-000100"), line(3).as_bytes());
    stage.append(&file("0.log"), line(4).as_bytes());
    stage.drain();
    stage.save();
    // The container is started again while no agent runs, and the rotated files change.
    stage.append(&file("0.log"), line(5).as_bytes());
    stage.append(&file("1.log"), line(6).as_bytes());
    compress(&stage, "0.log.20260102-000100");
    stage.kill();
    stage.drain();
    // A file that is read is renamed and compressed.
    stage.append(&file("1.log"), line(7).as_bytes());
    stage.rename(&file("1.log"), &file("1.log.20260102-000200"));
    stage.append(&file("1.log"), line(8).as_bytes());
    stage.drain();
    compress(&stage, "1.log.20260102-000200");
    stage.pass_grace();
    stage.drain();
    stage.append(&file("1.log"), line(9).as_bytes());
    stage.drain();
    let expected: Vec<String> = (1..10).map(|number| format!("line {number}")).collect();
    assert_eq!(stage.texts(), expected);
    assert_eq!(stage.sink.len(), 9, "nothing was sent twice");
}

/// The runtime may end a file within a line, and within a message of several lines.
#[test]
fn lines_and_messages_go_on_in_the_next_file() {
    let stdout = |number, tag, text: &str| cri(number, "stdout", tag, text);
    let first = stdout(1, "F", "Apr 27 08:29:09.000: first")
        + &stdout(2, "P", "  second with eds")
        + &cri(3, "stderr", "P", "trouble ");
    let second = stdout(4, "F", "k12 of it")
        + &cri(5, "stderr", "F", "ahead")
        + &stdout(6, "F", "Apr 27 08:29:09.001: third")
        + &stdout(7, "F", "<003> 2021-07-14T12:00:00.000-00:00 [p2p] fourth");
    let mut expected = [
        "trouble ahead",
        "Apr 27 08:29:09.000: first\n  second with [redacted] of it",
        "Apr 27 08:29:09.001: third",
        "<003> 2021-07-14T12:00:00.000-00:00 [p2p] fourth",
    ];
    expected.sort_unstable();
    // The agent is killed before the second file, within it, after it, or not at all.
    for killed_at in [None, Some(0), Some(1), Some(usize::MAX)] {
        let mut stage = pod();
        stage.append(&file("0.log"), first.as_bytes());
        stage.drain();
        assert!(stage.sink.stored("node").is_empty(), "a line that is not complete");
        stage.rename(&file("0.log"), &file("0.log.20260102-000000"));
        if killed_at == Some(0) {
            stage.save();
            stage.kill();
        }
        let middle = second.match_indices('\n').nth(1).unwrap().0 + 1;
        stage.append(&file("0.log"), &second.as_bytes()[..middle]);
        if killed_at == Some(1) {
            stage.drain();
            stage.save();
            stage.kill();
        }
        stage.append(&file("0.log"), &second.as_bytes()[middle..]);
        if killed_at == Some(usize::MAX) {
            stage.kill();
        }
        stage.drain();
        let stored = stage.sink.stored("node");
        let mut texts: Vec<_> = stored.iter().map(|message| String::from_utf8_lossy(&message.raw)).collect();
        texts.sort();
        assert_eq!(texts, expected, "{killed_at:?}");
    }
}

/// The runtime marks a last line without a newline as incomplete.
#[test]
fn the_last_words_of_a_container_are_recorded_when_it_was_started_again() {
    let mut stage = pod();
    let stdout = |number, tag, text: &str| cri(number, "stdout", tag, text);
    stage.append(
        &file("0.log"),
        (stdout(1, "F", "Apr 27 08:29:09.000: first") + &stdout(2, "F", "  second") + &stdout(3, "P", "panicked at"))
            .as_bytes(),
    );
    stage.drain();
    assert!(stage.sink.stored("node").is_empty(), "they could go on in a rotated file");
    stage.append(&file("1.log"), stdout(4, "F", "<003> 2021-07-14T12:00:00.000-00:00 [p2p] again").as_bytes());
    stage.drain();
    stage.pass_grace();
    stage.drain();
    let mut texts = stage.texts();
    texts.sort();
    let again = "<003> 2021-07-14T12:00:00.000-00:00 [p2p] again";
    assert_eq!(texts, [again, "Apr 27 08:29:09.000: first\n  second", "panicked at"]);
    stage.save();
    stage.kill();
    stage.drain();
    assert_eq!(stage.sink.len(), 3, "nothing was sent twice");
}

#[test]
fn a_damaged_file_delays_no_other() {
    let mut stage = pod();
    let line = |number: usize| cri(number, "stdout", "F", &format!("line {number}"));
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all((0..1000).map(line).collect::<String>().as_bytes()).unwrap();
    let whole = gzip.finish().unwrap();
    let name = file("0.log.20260102-000000.gz");
    stage.append(&name, &whole[..whole.len() / 2]);
    stage.append(&file("0.log"), line(1000).as_bytes());
    stage.drain();
    let texts = stage.texts();
    assert!(texts.len() < 1000 && texts.contains(&"line 1000".to_owned()), "{}", texts.len());
    // It was not written completely.
    stage.append(&name, &whole[whole.len() / 2..]);
    stage.drain();
    for number in 0..1001 {
        assert!(stage.texts().contains(&format!("line {number}")), "{number}");
    }
}

#[test]
fn docker_files_are_read() {
    let mut stage = Stage::new(|logs| LogLocation::docker(&dirs(logs), "id"), &[]);
    fs::create_dir_all(stage.path("docker/id")).unwrap();
    let line = |number: usize, stream: &str, text: &str| {
        format!("{{\"log\":{text},\"stream\":\"{stream}\",\"time\":\"{}\"}}\n", time(number))
    };
    stage.append("docker/id/id-json.log.1", line(1, "stdout", r#""one\n""#).as_bytes());
    stage.append("docker/id/id-json.log", line(2, "stderr", r#""two \"quoted\"\r\n""#).as_bytes());
    stage.append("docker/id/id-json.log", line(3, "stdout", r#""thr""#).as_bytes());
    stage.append("docker/id/id-json.log", line(4, "stdout", r#""ee\n""#).as_bytes());
    stage.drain();
    // Docker renames.
    stage.rename("docker/id/id-json.log", "docker/id/id-json.log.2");
    stage.append("docker/id/id-json.log", line(5, "stdout", r#""rest\n""#).as_bytes());
    stage.append("docker/id/id-json.log", line(6, "stdout", r#""without an end""#).as_bytes());
    stage.drain();
    stage.finish();
    assert_eq!(stage.texts(), ["one", "two \"quoted\"", "three", "rest", "without an end"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Two streams with parts and messages of several lines in one file, and a kill at any moment.
    #[test]
    fn every_line_of_both_streams_is_stored_once(
        lines in prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>(), 0..8_u8, 0..30_u64), 1..40),
    ) {
        let mut stage = pod();
        let mut written = [Vec::new(), Vec::new()];
        let mut open = [String::new(), String::new()];
        for (number, (is_stderr, is_partial, is_continued, action, durable)) in lines.into_iter().enumerate() {
            let of = usize::from(is_stderr);
            let text = match is_continued && open[of].is_empty() {
                true => format!("  {number}"),
                false => format!("Apr 27 08:29:09.{number:03}: {number}"),
            };
            open[of].push_str(&text);
            if !is_partial {
                written[of].push(std::mem::take(&mut open[of]));
            }
            let tag = if is_partial { "P" } else { "F" };
            stage.append(&file("0.log"), cri(number, ["stdout", "stderr"][of], tag, &text).as_bytes());
            stage.sink.set_durable(Some(durable));
            match action {
                0 => stage.kill(),
                1 => stage.drain(),
                2 => stage.save(),
                3 | 4 => {
                    stage.poll();
                    stage.save();
                }
                _ => {
                    stage.poll();
                }
            }
        }
        stage.drain();
        stage.finish();
        for (of, stream) in ["stdout", "stderr"].into_iter().enumerate() {
            if !open[of].is_empty() {
                written[of].push(std::mem::take(&mut open[of]));
            }
            let stored = stage.sink.stored("node").into_iter().filter(|message| message.source == stream);
            let texts: Vec<String> = stored.map(|message| String::from_utf8(message.raw).unwrap()).collect();
            let lines: Vec<String> = texts.join("\n").lines().map(str::to_owned).collect();
            prop_assert_eq!(&lines, &written[of], "{}", stream);
        }
    }
}
