//! The page `/docs` in a real browser: it takes a token, and sends it.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use crate::{browser::result_of, openapi::guarded};

/// A page that does in `/docs`, in a frame, what a user does: gives a token, opens `/v2/version`, and executes it.
const PAGE: &str = r##"<!DOCTYPE html><meta charset="utf-8"><pre id="result"></pre>
<iframe id="docs" src="/docs/index.html" width="1200" height="900"></iframe><script>
const frame = document.getElementById("docs");
const wait = async (selector, inside) => {
  for (;;) {
    const found = (inside ?? frame.contentDocument)?.querySelector(selector);
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
};
const type = (input, text) => {
  const { HTMLInputElement, Event } = frame.contentWindow;
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(input, text);
  input.dispatchEvent(new Event("input", { bubbles: true }));
};
const execute = async () => {
  const operation = await wait(".opblock[id$=version]");
  if (!operation.classList.contains("is-open")) {
    operation.querySelector(".opblock-summary-control").click();
    (await wait(".try-out__btn", operation)).click();
  }
  (await wait(".execute", operation)).click();
  const status = await wait("tr.response .response-col_status", operation);
  return parseInt(status.textContent);
};
(async () => {
  (await wait(".btn.authorize")).click();
  type(await wait(".dialog-ux input"), "secret");
  (await wait(".dialog-ux .auth.authorize")).click();
  (await wait(".dialog-ux .btn-done")).click();
  document.getElementById("result").textContent = await execute();
})();
</script>"##;

/// The first line and the value of `authorization` of each request.
type Requests = Arc<Mutex<Vec<(String, Option<String>)>>>;

/// Serves the page as `/page`, and the API as the rest of the same origin, to any request, until the tests end.
fn serve(api: SocketAddr, requests: &Requests) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::clone(requests);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let requests = Arc::clone(&requests);
            thread::spawn(move || respond(stream, api, &requests));
        }
    });
    address
}

fn respond(mut stream: TcpStream, api: SocketAddr, requests: &Requests) -> io::Result<()> {
    let lines = BufReader::new(stream.try_clone()?).lines();
    let head: Vec<String> =
        lines.take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty())).collect::<Result<_, _>>()?;
    let Some(first) = head.first() else { return Ok(()) };
    if first.starts_with("GET /page ") {
        let length = PAGE.len();
        let head = format!("content-type: text/html\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
        return write!(stream, "HTTP/1.1 200 OK\r\n{head}{PAGE}");
    }
    let header = |line: &String| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("authorization").then(|| value.to_owned())
    };
    requests.lock().unwrap().push((first.clone(), head.iter().find_map(header)));
    let mut upstream = TcpStream::connect(api)?;
    let kept: String = head
        .iter()
        .filter(|line| !line.to_ascii_lowercase().starts_with("connection:"))
        .map(|line| format!("{line}\r\n"))
        .collect();
    write!(upstream, "{kept}connection: close\r\n\r\n")?;
    io::copy(&mut upstream, &mut stream).map(drop)
}

#[test]
fn the_page_takes_a_token_and_sends_it_with_requests_alone() {
    let (server, requests) = (guarded(), Requests::default());
    let page = serve(server.http(), &requests);
    assert_eq!(result_of(&format!("http://127.0.0.1:{}/page", page.port())), "200");
    let requests = requests.lock().unwrap().clone();
    let with_token: Vec<_> = requests.iter().filter(|(_, token)| token.is_some()).collect();
    assert_eq!(with_token, [&("GET /v2/version HTTP/1.1".to_owned(), Some("Bearer secret".to_owned()))]);
    assert!(requests.iter().any(|(line, _)| line.starts_with("GET /openapi.json ")), "{requests:?}");
}
