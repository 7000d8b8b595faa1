//! A real browser, Debian's Chromium: pages of other origins read the API as far as CORS lets them.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
    thread,
};

use chainscope_aggregator::NodeConfig;
use chainscope_proto::v1::record::Kind;
use serde_json::{Value, json};

use crate::{
    common::{Server, TIME, logs::lines, message, record},
    memory::example,
};

/// A page that requests each path, and then writes what it got, as JSON, into its document.
const PAGE: &str = r##"<!DOCTYPE html><meta charset="utf-8"><pre id="result"></pre><script>
const api = decodeURIComponent(location.search.slice(1));
const paths = ["/v2/p2p?limit=1000", '/v2/log?query="read identity"&limit=1000', "/v1/tree?threshold=512&reverse=false",
  "/chains/main/blocks/head/header", "/v2/p2p?limit=x"];
const read = async (path, options) => {
  try {
    const answer = await fetch(api + path, options);
    return { status: answer.status, body: await answer.json() };
  } catch (error) {
    return { error: error.name };
  }
};
const event = () => new Promise((resolve) => {
  const events = new EventSource(api + "/v2/log/stream?cursor=0");
  events.onmessage = ({ lastEventId, data }) => { events.close(); resolve({ id: lastEventId, row: JSON.parse(data) }); };
  events.onerror = () => { events.close(); resolve({ error: "stream" }); };
});
(async () => {
  const results = [];
  for (const path of paths) results.push(await read(path));
  results.push(await read("/v2/version", { headers: { authorization: "Bearer x" } }));
  results.push(await event());
  document.getElementById("result").textContent = JSON.stringify(results);
})();
</script>"##;

/// Serves the page, to any request, until the tests end.
fn serve_page() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // A browser opens connections in advance, and sends nothing on some of them.
            thread::spawn(move || respond(stream));
        }
    });
    address
}

fn respond(mut stream: TcpStream) -> io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    while !lines.next().transpose()?.is_none_or(|line| line.is_empty()) {}
    let length = PAGE.len();
    let head = format!("content-type: text/html\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    write!(stream, "HTTP/1.1 200 OK\r\n{head}{PAGE}")
}

/// What the page that comes from this host got from the API.
fn results(host: &str, page: SocketAddr, api: SocketAddr) -> Vec<Value> {
    let text = result_of(&format!("http://{host}:{}/?http%3A%2F%2F{api}", page.port()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

/// What the script of a page writes into its element `result`.
pub(crate) fn result_of(url: &str) -> String {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-extensions"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        // Every name is this machine.
        .arg("--host-resolver-rules=MAP * 127.0.0.1")
        // Time in the page stands still while a request is under way.
        .args(["--virtual-time-budget=60000", "--dump-dom"])
        .arg(url)
        .env("HOME", profile.path())
        .output()
        .expect("chromium is missing: scripts/setup installs it");
    let document = String::from_utf8(output.stdout).unwrap();
    let text = document.split("<pre id=\"result\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let text = text.unwrap_or_else(|| panic!("{document}\n{}", String::from_utf8_lossy(&output.stderr)));
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

#[test]
fn pages_of_allowed_origins_read_messages_logs_and_memory_and_others_nothing() {
    let page = serve_page();
    let server = Server::with(|config| {
        config.nodes.push(NodeConfig::new("9732"));
        config.cors_origins = vec![format!("http://explorer.example:{}", page.port())];
    });
    let mut records: Vec<_> = (0..1500).map(|n| record(TIME + n, Kind::Message(message("advertise")))).collect();
    records.extend(lines(&["read identity file", "peer"]));
    server.feed("9732", records);
    server.agent(&[]).memory([example().keyframe()]);

    for host in ["localhost", "127.0.0.1", "explorer.example"] {
        let results = results(host, page, server.http());
        let statuses: Vec<_> = results.iter().map(|result| &result["status"]).collect();
        assert_eq!(statuses[..6], [200, 200, 200, 200, 400, 200].map(Value::from).iter().collect::<Vec<_>>(), "{host}");
        let ids: Vec<_> =
            results[0]["body"].as_array().unwrap().iter().map(|row| row["id"].as_u64().unwrap()).collect();
        assert_eq!(ids, (500..1500).rev().collect::<Vec<_>>(), "{host}");
        assert_eq!(results[1]["body"][0]["message"], "read identity file", "{host}");
        assert_eq!(results[1]["body"].as_array().unwrap().len(), 1, "{host}");
        assert_eq!(results[2]["body"]["value"], 2_451_584, "{host}");
        assert_eq!(results[3]["body"], json!({}), "{host}");
        assert_eq!(results[4]["body"]["parameter"], "limit", "{host}");
        assert_eq!((&results[6]["id"], &results[6]["row"]["message"]), (&json!("0"), &json!("read identity file")));
    }
    for result in results("evil.example", page, server.http()) {
        assert!(result["error"].is_string() && result["body"].is_null(), "{result}");
    }
}
