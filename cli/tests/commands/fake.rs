//! A server that answers as a test says.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    sync::{Arc, Mutex},
    thread,
};

use serde_json::json;

use crate::server::TIME;

/// A server that answers each request by its path and query, and remembers them.
pub(crate) struct Fake {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    pub(crate) fn start(answer: impl Fn(&str) -> (&'static str, String) + Send + 'static) -> Self {
        Self::with_tokens(move |target, _| answer(target))
    }

    /// A server that answers by the bearer token as well, which is empty if there is none.
    pub(crate) fn with_tokens(answer: impl Fn(&str, &str) -> (&'static str, String) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let lines = BufReader::new(stream.try_clone().expect("a handle")).lines();
                let head: Vec<String> =
                    lines.map(|line| line.expect("a line")).take_while(|line| !line.is_empty()).collect();
                let target = head[0].split(' ').nth(1).expect("a target").to_owned();
                let (status, body) = answer(&target, bearer_token(&head));
                seen.lock().expect("not poisoned").push(target);
                // The client may have exited.
                let _ = write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\n\r\n{body}");
            }
        });
        Self { url, requests }
    }

    /// A log whose first stream ends after row 1, since the token `old` has expired: `renew` is called, and from then on only
    /// `new` is valid. The second stream goes on with row 2 and ends with an error that is final.
    pub(crate) fn with_expiring_token(renew: impl Fn() + Send + 'static) -> Self {
        let has_expired = Mutex::new(false);
        Self::with_tokens(move |target, token| {
            let mut has_expired = has_expired.lock().expect("not poisoned");
            if token != if *has_expired { "new" } else { "old" } {
                return ("401 Unauthorized", json!({"status": 401, "detail": "not a valid token"}).to_string());
            }
            let error = |status: u16, detail: &str| {
                format!("event: error\ndata: {}\n\n", json!({"status": status, "detail": detail}))
            };
            match target {
                "/v2/log?limit=1&direction=backward" => ("200 OK", format!("[{}]", row(u64::from(*has_expired)))),
                "/v2/log?limit=1&direction=forward" => ("200 OK", format!("[{}]", row(0))),
                "/v2/log?limit=100" => ("200 OK", "[]".to_owned()),
                "/v2/log/stream?cursor=1" => {
                    *has_expired = true;
                    renew();
                    ("200 OK", event(1) + &error(401, "the token has expired"))
                }
                "/v2/log/stream?cursor=2" => ("200 OK", event(2) + &error(404, "the end")),
                other => ("404 Not Found", other.to_owned()),
            }
        })
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("not poisoned").clone()
    }
}

fn bearer_token(head: &[String]) -> &str {
    let headers = head.iter().filter_map(|line| line.split_once(": "));
    let mut values = headers.filter(|(name, _)| name.eq_ignore_ascii_case("authorization")).map(|(_, value)| value);
    values.next().and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default()
}

/// A row of a log: `line` and its id.
pub(crate) fn row(id: u64) -> String {
    json!({"id": id, "level": "Info", "timestamp": TIME, "section": "", "message": format!("line {id}")}).to_string()
}

/// The event of a row.
pub(crate) fn event(id: u64) -> String {
    format!("id: {id}\ndata: {}\n\n", row(id))
}
