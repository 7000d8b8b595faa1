//! `chainscope db` on a database on disk.

use std::{
    fs,
    os::unix::fs::{FileExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use chainscope_proto::v1::LogLevel;
use chainscope_store::{LogQuery, MessageQuery, Store, StoreOptions};
use tempfile::TempDir;

use crate::{
    chainscope, refusal,
    server::{NODE, logged, metadata},
    snapshots, stdout,
};

const MESSAGES: u64 = 500;

fn options() -> StoreOptions {
    StoreOptions { ballast_bytes: 1 << 20, segment_rows: 100, ..StoreOptions::default() }
}

/// A data directory with records of a server that has ended.
fn data_dir() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path().join("db"), options()).expect("opens");
    let mut records: Vec<_> = (0..MESSAGES).flat_map(|counter| metadata(29_733, counter % 2 == 0, counter)).collect();
    records.extend((0..50).map(|second| logged(second, LogLevel::Notice, "read identity file")));
    store.append(NODE, "host-1", &[7; 16], 0, &records).and_then(|_| store.sync()).expect("stores");
    dir
}

/// The ids of messages and log messages, newest first.
fn rows(data_dir: &Path) -> [Vec<u64>; 2] {
    let store = Store::open(data_dir.join("db"), options()).expect("opens");
    let messages = store.messages(NODE, &MessageQuery { limit: 1000, ..MessageQuery::default() }).expect("reads");
    let logs = store.log_messages(NODE, &LogQuery { limit: 1000, ..LogQuery::default() }).expect("reads");
    [messages.into_iter().map(|(id, _)| id).collect(), logs.into_iter().map(|(id, _)| id).collect()]
}

fn all_rows() -> [Vec<u64>; 2] {
    [(0..MESSAGES).rev().collect(), (0..50).rev().collect()]
}

/// The largest of the files with this extension.
fn largest(dir: &Path, extension: &str) -> PathBuf {
    let files = fs::read_dir(dir).expect("reads").map(|entry| entry.expect("reads").path());
    let files = files.filter(|path| path.extension().is_some_and(|found| found == extension));
    files.max_by_key(|path| fs::metadata(path).expect("exists").len()).expect("a file")
}

/// Inverts some bytes within a file.
fn damage(path: &Path) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("opens");
    let middle = file.metadata().expect("exists").len() / 3;
    let mut bytes = [0; 64];
    file.read_exact_at(&mut bytes, middle).expect("reads");
    file.write_all_at(&bytes.map(|byte| !byte), middle).expect("writes");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Runs the program where `full` is a file system of 1 MiB. Returns its exit code, standard error, and what is in `full` then.
fn on_a_full_disk(full: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let script = "mount -t tmpfs -o size=1m tmpfs \"$1\" || exit 99; shift 1
        \"$@\"; code=$?; echo \"left: $(ls -A \"$0\")\"; exit $code";
    let command = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script, text(full), text(full)])
        .arg(env!("CARGO_BIN_EXE_chainscope"))
        .args(arguments)
        .output();
    let Output { status, stdout, stderr } = command.expect("unshare is of util-linux");
    let [stdout, stderr] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).expect("UTF-8"));
    assert_ne!(status.code(), Some(99), "a user namespace may not mount: {stderr}");
    let left = stdout.lines().find_map(|line| line.strip_prefix("left: ").or(line.strip_prefix("left:")));
    (status.code(), stderr, left.expect("a listing").to_owned())
}

#[test]
fn a_sound_database_is_checked_and_compacted() {
    let dir = data_dir();
    let data = text(dir.path());
    let checked = || stdout(&["db", "check", "--data-dir", data]);
    let found = checked();
    for line in ["nodes: 1", "chunks: 500", "no problems found"] {
        assert!(found.lines().any(|found| found == line), "{line} is not in {found}");
    }
    let compacted = stdout(&["db", "--data-dir", data, "compact"]);
    assert!(compacted.contains(" before, ") && compacted.ends_with(" now\n"), "{compacted}");
    assert_eq!(checked(), found);
    assert_eq!(rows(dir.path()), all_rows());
    let Output { stderr, .. } = chainscope(&["db", "check", "--data-dir", data]).output().expect("it starts");
    assert!(String::from_utf8_lossy(&stderr).starts_with("chainscope: checking "), "progress is on standard error");
}

#[test]
fn the_configuration_file_names_the_data_directory() {
    let dir = data_dir();
    let config = dir.path().join("chainscope.toml");
    fs::write(&config, format!("data_dir = {:?}\n[[nodes]]\np2p_port = 9732\n", dir.path())).expect("writes");
    assert!(stdout(&["db", "check", "--config", text(&config)]).ends_with("no problems found\n"));
    let missing = Command::new(env!("CARGO_BIN_EXE_chainscope"))
        .args(["db", "check"])
        .env_clear()
        .current_dir(tempfile::tempdir().expect("a directory").path())
        .output()
        .expect("it starts");
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("--data-dir is missing"), "{missing:?}");
}

#[test]
fn a_backup_is_restored_to_an_equal_database_and_never_over_another() {
    let dir = data_dir();
    let scratch = tempfile::tempdir().expect("a directory");
    let (backup, other) = (scratch.path().join("backups/monday"), scratch.path().join("data"));
    let written = stdout(&["db", "backup", text(&backup), "--data-dir", text(dir.path())]);
    assert!(written.contains(&format!("chainscope db restore {}", backup.display())), "{written}");
    let again = refusal(&["db", "backup", text(&backup), "--data-dir", text(dir.path())]);
    assert!(again.contains("is not empty") && again.contains("name another directory"), "{again}");

    // The original goes on, and is no part of the backup.
    let store = Store::open(dir.path().join("db"), options()).expect("opens");
    let mark = store.high_water_mark(NODE, "host-1", &[7; 16]);
    store.append(NODE, "host-1", &[7; 16], mark, &metadata(29_733, true, 9000)).expect("stores");
    store.sync().expect("stores");
    drop(store);

    let restored = stdout(&["db", "restore", text(&backup), "--data-dir", text(&other)]);
    assert!(restored.contains("chainscope db check"), "{restored}");
    assert_eq!(rows(&other), all_rows());
    assert_eq!(rows(dir.path())[0].len() as u64, MESSAGES + 1);

    for target in [dir.path(), &other] {
        let before = rows(target);
        let refused = refusal(&["db", "restore", text(&backup), "--data-dir", text(target)]);
        assert!(refused.contains("is not empty") && refused.contains("move this one away"), "{refused}");
        assert_eq!(rows(target), before);
    }
    let no_backup = refusal(&["db", "restore", text(scratch.path()), "--data-dir", text(&scratch.path().join("new"))]);
    assert!(no_backup.contains("there is no database in") && no_backup.contains("db backup"), "{no_backup}");
    assert!(!scratch.path().join("new/db").exists());
}

#[test]
fn a_damaged_file_is_found_by_a_check_and_a_damaged_backup_is_not_restored() {
    let dir = data_dir();
    let (data, database) = (text(dir.path()), dir.path().join("db"));
    // From the log into a file of the database.
    stdout(&["db", "compact", "--data-dir", data]);
    let backup = dir.path().join("backup");
    stdout(&["db", "backup", text(&backup), "--data-dir", data]);

    damage(&largest(&database, "sst"));
    let Output { status, stdout: found, stderr } =
        chainscope(&["db", "check", "--data-dir", data]).output().expect("it starts");
    let [found, stderr] = [found, stderr].map(|bytes| String::from_utf8(bytes).expect("UTF-8"));
    assert_eq!(status.code(), Some(1), "{found}\n{stderr}");
    assert!(found.contains("PROBLEM 9732: ") && found.contains("checksum"), "{found}");
    assert!(stderr.contains(": 1\nhint: move ") && stderr.contains("chainscope db restore"), "{stderr}");

    // The file of the backup is linked to the damaged one; it is cut off, so that the backup does not even open.
    let manifest = fs::read_to_string(backup.join("CURRENT")).expect("reads");
    fs::write(backup.join(manifest.trim()), "no manifest").expect("writes");
    let other = dir.path().join("other");
    let refused = refusal(&["db", "restore", text(&backup), "--data-dir", text(&other)]);
    assert!(refused.contains("damaged") && refused.contains("name another backup"), "{refused}");
    assert!(!other.join("db").exists(), "nothing is left of it");
}

#[test]
fn a_database_that_is_in_use_or_missing_is_refused_with_the_next_step() {
    let dir = data_dir();
    let data = text(dir.path());
    let running = Store::open(dir.path().join("db"), options()).expect("opens");
    let backup = dir.path().join("backup");
    for command in [&["check"][..], &["compact"], &["backup", text(&backup)]] {
        let refused = refusal(&[&["db", "--data-dir", data][..], command].concat());
        assert!(refused.contains("in use by another process") && refused.contains("stop the server"), "{refused}");
    }
    assert!(stdout(&["db", "--help"]).contains("Of a\nrunning one take an atomic snapshot"), "the advice is there");
    assert!(!backup.exists());
    drop(running);
    let database = dir.path().join("db");
    for wrong in [text(&database), "/nowhere"] {
        let refused = refusal(&["db", "check", "--data-dir", wrong]);
        assert!(refused.contains("there is no database in") && refused.contains("--data-dir"), "{refused}");
    }
    assert!(!Path::new("/nowhere").exists() && !database.join("db").exists(), "a check creates nothing");
}

#[test]
fn what_does_not_fit_on_a_disk_is_not_begun() {
    let dir = data_dir();
    let data = text(dir.path());
    let backup = dir.path().join("backup");
    stdout(&["db", "backup", text(&backup), "--data-dir", data]);
    let full = dir.path().join("full");
    fs::create_dir(&full).expect("creates");
    let to = full.join("copy");
    for arguments in [
        &["db", "backup", text(&to), "--data-dir", data][..],
        &["db", "restore", text(&backup), "--data-dir", text(&full)],
    ] {
        let (code, stderr, left) = on_a_full_disk(&full, arguments);
        assert_eq!((code, left.as_str()), (Some(1), ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains("bytes are needed in") && stderr.contains("another disk"), "{stderr}");
    }
    assert_eq!(rows(dir.path()), all_rows());
}

/// Without rights to its files a database is neither damaged nor missing.
#[test]
fn a_database_of_another_user_is_refused_with_the_next_step() {
    let dir = data_dir();
    let data = text(dir.path());
    let owned = Command::new("chown").args(["-R", "65534", data]).status().expect("chown");
    assert!(owned.success(), "this test needs root: run `make test`");
    // The directory cannot be read; then it can, but its files cannot be written.
    for mode in [0o700, 0o755] {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).expect("set");
        // Without capabilities root has the rights of an owner only.
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all", env!("CARGO_BIN_EXE_chainscope")]);
        let Output { status, stderr, .. } =
            command.args(["db", "check", "--data-dir", data]).output().expect("setpriv is of util-linux");
        let stderr = String::from_utf8(stderr).expect("UTF-8");
        assert_eq!(status.code(), Some(2), "{mode:o}: {stderr}");
        assert!(stderr.contains("hint: run the command as the user of the server"), "{mode:o}: {stderr}");
    }
}

/// A command and its output in a transcript.
fn transcribe(directory: &Path, arguments: &[&str]) -> String {
    let mut command = chainscope(arguments);
    command.env("COLUMNS", "80").current_dir(directory);
    snapshots::transcribe(&mut command, &snapshots::command_line(arguments))
}

/// A transcript without the sizes of files, which differ from run to run.
fn without_sizes(transcript: &str) -> String {
    let mut words = transcript.split(' ').peekable();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        let is_size = word.parse::<f64>().is_ok() && words.next_if(|unit| ["B", "KiB", "MiB"].contains(unit)).is_some();
        kept.push(if is_size { "SIZE" } else { word });
    }
    kept.join(" ")
}

/// A transcript without its numbers: those of files, checksums and places of a damaged database differ from run to run.
fn without_numbers(transcript: &str) -> String {
    let mut kept = String::new();
    for character in transcript.chars() {
        match character.is_ascii_digit() {
            true if kept.ends_with('N') => {}
            true => kept.push('N'),
            false => kept.push(character),
        }
    }
    kept
}

/// What each command says that succeeds, and what a check says of a damaged database.
#[test]
fn output_of_maintenance() {
    let dir = data_dir();
    let scratch = tempfile::tempdir().expect("a directory");
    let (backup, restored) = (scratch.path().join("backup"), scratch.path().join("restored"));
    let (data, backup, restored) = (text(dir.path()), text(&backup), text(&restored));
    let named = [(data, "/var/lib/chainscope"), (backup, "/mnt/backup"), (restored, "/srv/chainscope")];
    let run = |arguments: &[&str]| {
        let transcript = transcribe(scratch.path(), arguments);
        named.iter().fold(transcript, |text, (path, name)| text.replace(path, name))
    };
    let sound = [
        run(&["db", "compact", "--data-dir", data]),
        run(&["db", "check", "--data-dir", data, "-o", "jsonl"]),
        run(&["db", "backup", backup, "--data-dir", data]),
        run(&["db", "restore", backup, "--data-dir", restored]),
    ];
    damage(&largest(&dir.path().join("db"), "sst"));
    let damaged = [
        run(&["db", "check", "--data-dir", data]),
        run(&["db", "check", "--data-dir", data, "-o", "json"]),
        run(&["db", "check", "--data-dir", data, "-o", "jsonl", "-q"]),
    ];
    snapshots::compare(&(without_sizes(&sound.concat()) + &without_numbers(&damaged.concat())), "db-output");
}

#[test]
fn help() {
    let mut transcript = String::new();
    for columns in [80, 200] {
        for command in ["check", "backup", "restore", "compact"] {
            let arguments = ["db", command, "--help"];
            transcript += &snapshots::transcribe_at(Some(columns), &mut chainscope(&arguments), &arguments);
        }
    }
    snapshots::compare(&transcript, "db-help");
}

/// Every error, as a user sees it.
#[test]
fn errors_have_the_next_step() {
    let dir = data_dir();
    let scratch = tempfile::tempdir().expect("a directory");
    let (data, backup, empty) = (dir.path(), scratch.path().join("backup"), scratch.path().join("empty"));
    fs::create_dir(&empty).expect("creates");
    let mut transcript = String::new();
    let mut run = |arguments: &[&str]| transcript += &transcribe(scratch.path(), arguments);
    let (data, backup, empty) = (text(data), text(&backup), text(&empty));
    run(&["db", "check"]);
    run(&["db", "check", "--config", "missing.toml"]);
    run(&["db", "check", "--data-dir", empty]);
    run(&["db", "repair"]);
    let running = Store::open(dir.path().join("db"), options()).expect("opens");
    run(&["db", "compact", "--data-dir", data]);
    drop(running);
    run(&["db", "check", "--data-dir", data]);
    run(&["db", "check", "--data-dir", data, "-o", "json"]);
    stdout(&["db", "backup", backup, "--data-dir", data]);
    run(&["db", "backup", backup, "--data-dir", data, "-q"]);
    run(&["db", "restore", backup, "--data-dir", data]);
    run(&["db", "restore", empty, "--data-dir", data]);
    let manifest = fs::read_to_string(scratch.path().join("backup/CURRENT")).expect("reads");
    fs::write(scratch.path().join("backup").join(manifest.trim()), "no manifest").expect("writes");
    run(&["db", "restore", backup, "--data-dir", empty, "-q"]);
    run(&["db", "--help"]);
    let named = [(data, "/var/lib/chainscope"), (backup, "/mnt/backup"), (empty, "/srv/empty")];
    let transcript = transcript.replace(manifest.trim(), "MANIFEST");
    let transcript = named.iter().fold(transcript, |text, (path, name)| text.replace(path, name));
    snapshots::compare(&transcript, "db");
}
