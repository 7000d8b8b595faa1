//! `chainscope connections --remote`.

use serde_json::{Value, json};

use crate::{fake::Fake, stdout};

#[test]
fn a_peer_is_found_by_its_address_as_the_table_and_as_the_json_shows_it() {
    let row = |number: u8, remote: &str| {
        json!([format!("161700568{number}.0"), {
            "initiator": "local", "remote_addr": remote, "peer_id": "unknown", "comments": [], "state": "open",
            "reason": "", "network": "", "target": "pid 1", "gaps": 0, "lost_bytes": 0, "closed": null,
        }])
    };
    let rows = json!([
        row(1, "[::ffff:51.15.220.7]:9732"),
        row(2, "[::ffff:51.15.220.7]:9733"),
        row(3, "[2001:db8::7]:9732"),
        row(4, "unknown"),
    ]);
    let answer = rows.to_string();
    let server = Fake::start(move |_| ("200 OK", answer.clone()));
    let connections = |remote: &str, output: &str| {
        stdout(&["connections", "--remote", remote, "--api", &server.url, "--output", output])
    };
    let shown = connections("51.15.220.7:9732", "table");
    assert!(shown.lines().count() == 2 && shown.contains(" 51.15.220.7:9732 "), "{shown}");
    for (index, remotes) in [
        (0, &["51.15.220.7:9732", "[::ffff:51.15.220.7]:9732"][..]),
        (2, &["[2001:db8::7]:9732", "[2001:db8:0::7]:9732"]),
    ] {
        for remote in remotes {
            let found: Value = serde_json::from_str(&connections(remote, "json")).expect("JSON");
            assert_eq!(found, json!([rows[index]]), "{remote}");
        }
    }
}
