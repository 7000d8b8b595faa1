//! Names of containers, from Docker's socket if it exists.

use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use serde::Deserialize;

use super::cgroup::ContainerId;

/// Path of Docker's socket.
pub(crate) const SOCKET: &str = "/var/run/docker.sock";
/// How long the daemon may take to answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Largest answer that is read: about a thousand containers.
const MAX_ANSWER: u64 = 8 << 20;

#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "Id")]
    id: String,
    #[serde(rename = "Names", default)]
    names: Vec<String>,
}

/// Ids of the running containers called `name`.
///
/// # Errors
/// The error of the system or the daemon; a missing socket is `NotFound`.
pub(crate) fn containers_named(socket: &Path, name: &str) -> io::Result<Vec<ContainerId>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    // HTTP/1.0: the response ends with the connection and is not chunked.
    stream.write_all(b"GET /containers/json HTTP/1.0\r\nHost: docker\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    ids(&answer, name)
}

/// Reads an HTTP answer whose body is Docker's list of containers.
fn ids(answer: &[u8], name: &str) -> io::Result<Vec<ContainerId>> {
    let damaged = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("Docker's answer {what}"));
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(|| damaged("has no header"))?;
    let (head, body) = answer.split_at(end + 4);
    if head.split(|byte| *byte == b' ').nth(1) != Some(b"200") {
        return Err(damaged("is no success"));
    }
    let listed: Vec<Listed> = serde_json::from_slice(body).map_err(|_| damaged("is no list of containers"))?;
    Ok(listed
        .into_iter()
        .filter(|container| container.names.iter().any(|known| known.trim_start_matches('/') == name))
        .filter_map(|container| ContainerId::parse(&container.id))
        .collect())
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, thread};

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn answer(body: &str) -> Vec<u8> {
        format!("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{body}").into_bytes()
    }

    #[test]
    fn a_name_gives_the_ids() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("docker.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let daemon = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 256];
            let length = stream.read(&mut request).unwrap();
            assert!(request[..length].starts_with(b"GET /containers/json HTTP/1.0\r\n"));
            let body =
                format!(r#"[{{"Id":"{ID}","Names":["/tezedge","/other/tezedge"],"State":"running"}},{{"Id":"x"}}]"#);
            stream.write_all(&answer(&body)).unwrap();
        });
        assert_eq!(containers_named(&path, "tezedge").unwrap(), [ContainerId::parse(ID).unwrap()]);
        daemon.join().unwrap();
    }

    #[test]
    fn no_daemon_and_malformed_answers_are_errors() {
        let missing = containers_named(Path::new("/nonexistent/docker.sock"), "x").unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(ids(b"", "x").is_err());
        assert!(ids(b"HTTP/1.1 500 Oops\r\n\r\n[]", "x").is_err());
        assert!(ids(&answer("{}"), "x").is_err());
        assert!(ids(&answer("[]"), "x").unwrap().is_empty());
    }
}
