//! `chainscope logs`.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, Output, Stdio},
    sync::Mutex,
};

use chainscope_proto::v1::{LogLevel, Record};
use serde_json::{Value, json};

use crate::{
    chainscope,
    fake::{Fake, event, row},
    refusal,
    server::{Server, TIME, logged},
    stdout,
    tmux::Terminal,
};

#[test]
fn each_flag_is_a_parameter_of_the_request() {
    let server = Fake::start(|_| ("200 OK", "[]".to_owned()));
    let logs = |arguments: &[&str]| stdout(&[&["logs", "--url", &server.url], arguments].concat());
    assert_eq!(logs(&[]), "");
    logs(&["default/octez-0", "--level", "warning,error", "--query", "\"a b\" +c", "--limit", "7"]);
    logs(&["--node", "x", "--since", "1626264123", "--until", "2021-07-14T12:02:04Z"]);
    logs(&["--limit", "0"]);
    assert_eq!(
        server.requests(),
        [
            "/v2/log?limit=100",
            "/v2/log?node_name=default%2Foctez-0&log_level=warning%2Cerror&query=%22a%20b%22%20%2Bc&limit=7",
            "/v2/log?node_name=x&from=1626264123&to=1626264124000&limit=1000&direction=forward",
        ]
    );
    for wrong in
        [&["a", "--node", "b"][..], &["--since", "yesterday"], &["--follow", "--until", "1"], &["--limit", "-1"]]
    {
        let status = chainscope(&[&["logs"], wrong].concat()).output().expect("it starts").status;
        assert_eq!(status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn what_is_logged_between_the_list_and_the_stream_is_not_missed() {
    let server = Fake::start(|target| match target {
        "/v2/log?limit=1&direction=backward" => ("200 OK", format!("[{}]", row(41))),
        "/v2/log?log_level=error&limit=100" => ("200 OK", "[]".to_owned()),
        "/v2/log/stream?log_level=error&cursor=42" => {
            let problem = json!({"status": 403, "detail": "no longer\u{1b}"});
            ("200 OK", format!(": open\n\nid: 42\ndata: {}\n\nevent: error\ndata: {problem}\n\n", row(42)))
        }
        other => ("404 Not Found", other.to_owned()),
    });
    let output = chainscope(&["logs", "-f", "--level", "error", "--url", &server.url]).output().expect("it starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2021-07-14T12:02:03.456Z INFO    line 42\n");
    assert_eq!(output.status.code(), Some(2), "a right is missing");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.starts_with("chainscope: the server ended the stream: no longer\\u{1b}\nhint: the account needs"),
        "{error}"
    );
    let refused = Fake::start(|_| ("400 Bad Request", json!({"detail": "log_level: unknown"}).to_string()));
    assert!(refusal(&["logs", "--url", &refused.url]).contains("400 Bad Request: log_level: unknown"));
}

const LEVELS: [(LogLevel, &str); 4] =
    [(LogLevel::Info, "INFO"), (LogLevel::Notice, "NOTICE"), (LogLevel::Warning, "WARN"), (LogLevel::Error, "ERROR")];

/// Log messages numbered from `first`, of all levels in turn, one a second.
fn numbered(first: i64, count: i64) -> Vec<Record> {
    let line = |number: i64| {
        let (level, name) = LEVELS[usize::try_from(number).expect("not negative") % LEVELS.len()];
        let line = format!(
            "Jul 14 12:02:03.456 {name:>6} │ block {number} is {}",
            ["applied", "refused"][number as usize % 2]
        );
        logged(number, level, &line)
    };
    (first..first + count).map(line).collect()
}

/// The numbers in lines of [`numbered`] messages.
fn numbers(text: &str) -> Vec<i64> {
    let number = |line: &str| line.split_once("block ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    text.lines().map(|line| number(line).unwrap_or_else(|| panic!("{line:?}"))).collect()
}

#[test]
fn filters_and_pages_of_a_real_log() {
    let mut server = Server::start();
    server.feed(numbered(0, 2500));
    let url = server.url();
    let logs = |arguments: &[&str]| stdout(&[&["logs", "--url", &url], arguments].concat());

    assert_eq!(numbers(&logs(&[])), (2400..2500).collect::<Vec<_>>(), "the newest, oldest first");
    assert_eq!(numbers(&logs(&["--limit", "2100"])), (400..2500).collect::<Vec<_>>(), "over several pages");
    assert_eq!(numbers(&logs(&["--limit", "1000000"])), (0..2500).collect::<Vec<_>>());
    assert_eq!(numbers(&logs(&["--level", "warning,error", "--limit", "3"])), [2495, 2498, 2499]);
    let second = |offset: i64| (TIME / 1_000_000 + offset * 1000).to_string();
    let between = logs(&["--since", &second(10), "--until", &second(12)]);
    assert_eq!(numbers(&between), [10, 11, 12]);
    assert!(between.starts_with("2021-07-14T12:02:13.456Z WARNING block 10 is applied\n"), "{between}");
    let rows: Vec<Value> =
        logs(&["--json", "--limit", "2"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = |id: i64, level: &str, result: &str| {
        json!({
            "id": id, "level": level, "timestamp": TIME + id * 1_000_000_000, "section": "",
            "message": format!("block {id} is {result}"),
        })
    };
    assert_eq!(rows, [expected(2498, "Warning", "applied"), expected(2499, "Error", "refused")]);
    assert!(refusal(&["logs", "--url", &url, "--level", "loud"]).contains("loud"));
    assert!(refusal(&["logs", "--url", &url, "nobody"]).contains("nobody"));
}

/// Starts the command with a pipe.
fn start(arguments: &[&str]) -> Child {
    chainscope(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

#[test]
fn a_followed_log_continues_where_the_list_ends() {
    let mut server = Server::start();
    server.feed(numbered(0, 10));
    let mut follow = start(&["logs", "--follow", "--limit", "2", "--level", "error,notice", "--url", &server.url()]);
    let mut lines = BufReader::new(follow.stdout.take().expect("piped")).lines().map(|line| line.expect("a line"));
    let mut next = |count| numbers(&lines.by_ref().take(count).collect::<Vec<_>>().join("\n"));
    assert_eq!(next(2), [7, 9]);
    server.feed(numbered(10, 6));
    assert_eq!(next(3), [11, 13, 15]);
    // A lost connection: nothing is missing, and nothing comes twice.
    server.stop();
    let mut errors = BufReader::new(follow.stderr.take().expect("piped")).lines().map(|line| line.expect("a line"));
    let lost = errors.next().expect("a note");
    assert!(lost.starts_with("connection lost: ") && lost.ends_with("; reconnecting"), "{lost}");
    server.resume();
    server.feed(numbered(16, 4));
    assert_eq!(next(2), [17, 19]);
    assert_eq!(errors.next().as_deref(), Some("reconnected"));
    follow.kill().expect("it runs");
    follow.wait().expect("it ends");
}

/// A log whose first stream ends after row 1; then rows 2 to 4 were evicted; then the server has lost all records. It has the
/// same rows with the filter `--level info` as without it.
fn server_that_loses_records() -> Fake {
    let state = Mutex::new(0);
    Fake::start(move |target| {
        let target = target.replace("log_level=info&", "");
        let mut streams = state.lock().expect("not poisoned");
        let (oldest, newest) = [(0, 0), (5, 6), (0, 0)][*streams];
        let list = |id: u64| ("200 OK", format!("[{}]", row(id)));
        if target.starts_with("/v2/log?limit=1&direction=backward") {
            return list(newest);
        }
        if target.starts_with("/v2/log?limit=1&direction=forward") {
            return list(oldest);
        }
        if target.starts_with("/v2/log?limit=100") {
            return ("200 OK", "[]".to_owned());
        }
        *streams += 1;
        match target.as_str() {
            "/v2/log/stream?cursor=1" => ("200 OK", event(1)),
            "/v2/log/stream?cursor=2" => ("200 OK", event(5) + &event(6)),
            "/v2/log/stream?cursor=0" => {
                let problem = json!({"status": 404, "detail": "the end"});
                ("200 OK", format!("{}event: error\ndata: {problem}\n\n", event(0)))
            }
            other => ("404 Not Found", other.to_owned()),
        }
    })
}

/// The numbers of the rows that were shown, and the lines of standard error.
fn shown(output: &Output) -> (Vec<u64>, Vec<String>) {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let number = |line: &str| line.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number");
    (text(&output.stdout).lines().map(number).collect(), text(&output.stderr).lines().map(str::to_owned).collect())
}

#[test]
fn records_that_are_new_or_gone_after_a_reconnect_are_named() {
    let server = server_that_loses_records();
    let output = chainscope(&["logs", "-f", "--api", &server.url]).output().expect("it starts");
    let (rows, errors) = shown(&output);
    assert_eq!(rows, [1, 5, 6, 0]);
    let lost = "connection lost: the server ended the stream; reconnecting";
    assert_eq!(
        errors,
        [
            lost,
            "3 records were evicted meanwhile and are missing here",
            "reconnected",
            lost,
            "the server has other records than before; all of them follow",
            "reconnected",
            "chainscope: the server ended the stream: the end",
            "hint: --api is the URL of a Chainscope API, without a path or with /nodes/NAME",
        ]
    );
}

#[test]
fn with_a_filter_evicted_records_are_not_claimed_to_be_missing() {
    let server = server_that_loses_records();
    let output = chainscope(&["logs", "-f", "--level", "info", "--api", &server.url]).output().expect("it starts");
    let (rows, errors) = shown(&output);
    assert_eq!(rows, [1, 5, 6, 0]);
    assert_eq!(
        errors[..3],
        [
            "connection lost: the server ended the stream; reconnecting",
            "records after the last one here were evicted meanwhile; matching ones may be missing",
            "reconnected",
        ]
    );
}

#[test]
fn a_stream_that_ends_with_its_token_goes_on_with_the_one_that_its_file_has_then() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("token");
    fs::write(&file, "old\n").expect("written");
    let renewed = file.clone();
    let server = Fake::with_expiring_token(move || fs::write(&renewed, "new\n").expect("written"));
    let file = file.to_str().expect("UTF-8");
    let output = chainscope(&["logs", "-f", "--api", &server.url, "--token-file", file]).output().expect("it starts");
    let (rows, errors) = shown(&output);
    assert_eq!(rows, [1, 2], "{errors:#?}");
    assert_eq!(
        errors[..3],
        [
            "connection lost: the server ended the stream: the token has expired; reconnecting",
            "reconnected",
            "chainscope: the server ended the stream: the end",
        ]
    );
    let requests = server.requests();
    let streams: Vec<_> = requests.iter().filter(|target| target.starts_with("/v2/log/stream")).collect();
    assert_eq!(streams, ["/v2/log/stream?cursor=1", "/v2/log/stream?cursor=2"]);
}

#[test]
fn a_token_that_has_expired_and_is_not_renewed_is_refused() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("token");
    fs::write(&file, "old\n").expect("written");
    let file = file.to_str().expect("UTF-8");
    // The file is read again, once; a token of the command line cannot change.
    for (token, requests, error) in [
        (["--token-file", file], 4, ": 401 Unauthorized: not a valid token"),
        (["--token", "old"], 3, "chainscope: the server ended the stream: the token has expired"),
    ] {
        let server = Fake::with_expiring_token(|| ());
        let output = chainscope(&[&["logs", "-f", "--api", &server.url], &token[..]].concat()).output();
        let output = output.expect("it starts");
        let (rows, errors) = shown(&output);
        assert_eq!((rows.as_slice(), output.status.code()), (&[1][..], Some(2)), "{errors:#?}");
        let [.., last, hint] = errors.as_slice() else { panic!("{errors:#?}") };
        assert!(last.ends_with(error) && hint.starts_with("hint: --token-file"), "{errors:#?}");
        assert_eq!(server.requests().len(), requests, "{:#?}", server.requests());
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let mut server = Server::start();
    server.feed(numbered(0, 3000));
    let mut logs = start(&["logs", "--limit", "3000", "--url", &server.url()]);
    let mut first = String::new();
    BufReader::new(logs.stdout.take().expect("piped")).read_line(&mut first).expect("a line");
    assert_eq!(numbers(&first), [0]);
    let output = logs.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn text_is_escaped_and_a_terminal_has_colours_unless_they_are_unwanted() {
    let mut server = Server::start();
    let hostile =
        "Jul 14 12:02:03.456  ERROR │ \u{1b}]0;title\u{7}\u{202e}\u{9b}31m\nJul 14 12:02:03.456  ERROR │   forged";
    server.feed(vec![logged(0, LogLevel::Error, hostile)]);
    let url = server.url();
    let text = stdout(&["logs", "--url", &url]);
    assert_eq!(
        text,
        "2021-07-14T12:02:03.456Z ERROR   \\u{1b}]0;title\\u{7}\\u{202e}\\u{9b}31m\n                                 │   forged\n"
    );
    assert!(!stdout(&["logs", "--json", "--url", &url]).contains('\u{1b}'));
    let coloured = |variable: &str| {
        let command = format!("{variable} {} logs --url {url}; echo; echo done; cat", env!("CARGO_BIN_EXE_chainscope"));
        let terminal = Terminal::start(100, 10, &command);
        terminal.wait_for("done");
        terminal.coloured_screen().contains("\u{1b}[31mERROR")
    };
    assert_eq!([coloured(""), coloured("NO_COLOR=1"), coloured("NO_COLOR=")], [true, false, true]);
}
