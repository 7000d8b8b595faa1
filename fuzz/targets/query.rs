//! Requests of the API with arbitrary query strings: a request is answered or refused with its reason, and a parameter that
//! the API does not know changes nothing.
#![no_main]
use std::fmt::Write as _;

use chainscope_fuzz::server::{PATHS, Server};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((choice, query)) = data.split_first() else { return };
    // What URIs must not contain is escaped.
    let mut escaped = String::new();
    for byte in query {
        match byte {
            b'!' | b'$'..=b';' | b'=' | b'?'..=b'_' | b'a'..=b'z' | b'~' => escaped.push(char::from(*byte)),
            _ => write!(escaped, "%{byte:02X}").expect("a string"),
        }
    }
    let path = PATHS[usize::from(*choice) % PATHS.len()];
    Server::with(|server| {
        let (status, body) = server.get(&format!("{path}?{escaped}"));
        let is_known = matches!(status, 200 | 400 | 404);
        assert!(is_known, "{path}?{escaped}: {status} {body}");
        if status != 200 {
            let problem: serde_json::Value = serde_json::from_str(&body).expect("a problem");
            let detail = problem["detail"].as_str().expect("its detail");
            assert!(!detail.is_empty() && !detail.chars().any(char::is_control), "{detail:?}");
        }
        let (again, _) = server.get(&format!("{path}?{escaped}&no-such-parameter=1"));
        assert_eq!(again, status, "{path}?{escaped}");
    });
});
