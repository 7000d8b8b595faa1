//! The syslog server on real sockets.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::Arc,
    time::Instant,
};

use chainscope_proto::v1::LogEncoding;
use chainscope_spec::{LogSources, Redaction, Syslog};
use chainscope_testing::{free_port, logs, wait};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use tokio::sync::watch;

use super::TestSink;
use crate::{
    config::{NodeConfig, NodeLogs},
    logs::{
        figures::Figures,
        syslog::{self, Server},
    },
    thread::AsyncThread,
};

struct Stage {
    address: SocketAddr,
    sink: TestSink,
    figures: Arc<Figures>,
    stop: watch::Sender<bool>,
    thread: AsyncThread,
}

/// Name, application and host of a node.
type Node<'a> = (&'a str, Option<&'a str>, Option<&'a str>);

impl Stage {
    fn new(nodes: &[Node<'_>]) -> Self {
        let (address, servers) = bind(nodes);
        Self::serve(address, servers, TestSink::default())
    }

    fn serve(address: SocketAddr, servers: Vec<Server>, sink: TestSink) -> Self {
        let (stop, stopped) = watch::channel(false);
        let figures = Arc::<Figures>::default();
        let (of, counts) = (sink.clone(), Arc::clone(&figures));
        let thread =
            AsyncThread::spawn("test-syslog", "syslog", move || syslog::serve(servers, of, counts, stopped)).unwrap();
        Self { address, sink, figures, stop, thread }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    #[track_caller]
    fn expect(&self, node: &str, texts: &[&str]) {
        wait::until_true(&format!("{texts:?}"), || self.sink.texts(node) == texts);
    }

    /// Ends the server after it has read what has arrived.
    fn finish(self) -> (TestSink, Arc<Figures>) {
        let Self { stop, mut thread, sink, figures, .. } = self;
        stop.send_replace(true);
        thread.wait(wait::WAIT_TIMEOUT);
        (sink, figures)
    }
}

fn bind(nodes: &[Node<'_>]) -> (SocketAddr, Vec<Server>) {
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let text = |text: &str| text.to_owned();
    let node = |(name, app, host): &Node<'_>| {
        let syslog = Syslog { listen, app: app.map(text), host: host.map(text) };
        let redact = Redaction::new(&["edsk\\w+".to_owned()]).unwrap();
        let logs = NodeLogs { redact, sources: LogSources { file: None, syslog: Some(syslog) } };
        NodeConfig { name: (*name).to_owned(), logs: Some(logs), ..NodeConfig::default() }
    };
    let nodes: Vec<NodeConfig> = nodes.iter().map(node).collect();
    (listen, syslog::bind(&nodes).unwrap())
}

fn sender() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

#[test]
fn nodes_on_one_address_are_told_apart() {
    let stage = Stage::new(&[
        ("a", Some("node-a"), None),
        ("b", Some("node-b"), Some("host-b")),
        ("c", Some("node-b"), Some("127.0.0.1")),
    ]);
    let socket = sender();
    for message in [
        "<30>1 2021-07-14T12:00:00Z h node-a 1 m - to a",
        "<30>Dec 31 23:59:58 host-b node-b[12]: to b",
        "<30>Dec 31 23:59:58 elsewhere node-b[12]: to c",
        "<30>Dec 31 23:59:58 elsewhere node-x[12]: to nobody",
        "without a header",
    ] {
        socket.send_to(message.as_bytes(), stage.address).unwrap();
    }
    wait::until_true("all messages", || stage.figures.unmatched_count() == 2);
    stage.expect("a", &["<30>1 2021-07-14T12:00:00Z h node-a 1 m - to a"]);
    stage.expect("b", &["<30>Dec 31 23:59:58 host-b node-b[12]: to b"]);
    stage.expect("c", &["<30>Dec 31 23:59:58 elsewhere node-b[12]: to c"]);
}

#[test]
fn the_lines_of_a_node_have_their_levels_and_times() {
    let stage = Stage::new(&[("node", None, None)]);
    let lines: Vec<_> = logs::lines(0..200).chain(logs::word_lines()).collect();
    let socket = sender();
    for (number, line) in (1..).zip(&lines) {
        socket.send_to(line.syslog().as_bytes(), stage.address).unwrap();
        // No faster than they are read, so that none is dropped.
        wait::until_true("the line", || stage.sink.len() == number || number % 50 != 0);
    }
    let (sink, figures) = stage.finish();
    assert_eq!(figures.messages_of("node"), lines.len() as u64);
    for ((record, message), line) in sink.records().iter().zip(sink.stored("node")).zip(&lines) {
        let level = chainscope_logs::Level::from_number(message.level as u8 - 1).unwrap();
        assert_eq!((record.time_ns, level.name()), (line.time_ns(), line.level), "{line:?}");
        assert_eq!((message.raw, message.source.as_str()), (line.syslog().into_bytes(), "syslog"));
        assert_eq!((message.encoding, message.position), (LogEncoding::Syslog.into(), None));
    }
}

#[test]
fn the_largest_datagram_and_any_bytes_are_kept() {
    let stage = Stage::new(&[("node", None, None)]);
    let socket = sender();
    let largest = [&b"<27>"[..], &[b'x'; 65_503]].concat();
    let bytes = b"<27>\xff\x00\x1b[31m edsk1 \xe2\x28";
    socket.send_to(&largest, stage.address).unwrap();
    socket.send_to(bytes, stage.address).unwrap();
    socket.send_to(b"", stage.address).unwrap();
    let (sink, _) = stage.finish();
    let raw: Vec<Vec<u8>> = sink.stored("node").into_iter().map(|message| message.raw).collect();
    assert_eq!(raw, [&largest[..], b"<27>\xff\x00\x1b[31m [redacted] \xe2\x28", b""]);
}

#[test]
fn frames_may_be_split_at_every_byte() {
    let stage = Stage::new(&[("node", None, None)]);
    let mut stream = stage.connect();
    for byte in b"9 <27>1 a\nb<27>one\r\n\n11 <27>1 two\n \nlast" {
        stream.write_all(&[*byte]).unwrap();
    }
    drop(stream);
    stage.expect("node", &["<27>1 a\nb", "<27>one", "<27>1 two\n ", "last"]);
    wait::until_true("the end of the connection", || stage.figures.connection_count() == 0);
    assert_eq!(stage.figures.closed_count("incomplete message"), 1);
}

#[test]
fn endless_frames_take_bounded_memory_and_are_recorded() {
    let stage = Stage::new(&[("node", None, None)]);
    let connections: Vec<TcpStream> = (0..300).map(|_| stage.connect()).collect();
    for (number, mut stream) in connections.iter().enumerate() {
        // Announces more than it sends.
        let _ = stream.write_all(format!("9999 <27>{number}").as_bytes());
    }
    wait::until_true("the connections beyond the limit to be closed", || {
        stage.figures.closed_count("closed") == 44 && stage.figures.connection_count() == 256
    });
    // A message without an end is recorded in pieces, as it arrives.
    let mut endless = &connections[299];
    let text = vec![b'x'; 3 << 20];
    endless.write_all(&text).unwrap();
    wait::until_true("most of the endless message", || {
        let bytes: usize = stage.sink.stored("node").iter().map(|message| message.raw.len()).sum();
        bytes > 2 << 20
    });
    drop(connections);
    let (sink, figures) = stage.finish();
    assert_eq!(figures.connection_count(), 0);
    let bytes: usize = sink.stored("node").iter().map(|message| message.raw.len()).sum();
    assert!(bytes >= text.len(), "{bytes}");
}

#[test]
fn a_server_that_ends_closes_its_connections_and_keeps_what_they_sent() {
    let stage = Stage::new(&[("node", None, None)]);
    let mut stream = stage.connect();
    stream.write_all(b"<27>one\n<27>two").unwrap();
    stage.expect("node", &["<27>one"]);
    let (sink, _) = stage.finish();
    assert_eq!(sink.texts("node"), ["<27>one", "<27>two"]);
    assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);
}

#[test]
fn datagrams_that_the_kernel_drops_are_a_loss() {
    let (one, two) = ([("node", None, None)], [("node", Some("a"), None), ("b", Some("b"), None)]);
    for (nodes, is_shared) in [(&one[..], false), (&two[..], true)] {
        let (address, servers) = bind(nodes);
        set_socket_recv_buffer_size(servers[0].udp(), 64 << 10).unwrap();
        // Nobody reads yet.
        let socket = sender();
        let sent = 2000;
        for number in 0..sent {
            socket.send_to(format!("<30>Dec 31 23:59:58 h a: {number}").as_bytes(), address).unwrap();
        }
        let (sink, figures) = Stage::serve(address, servers, TestSink::default()).finish();
        let received = figures.messages_of("node");
        assert!(received > 0 && figures.kernel_dropped_count() > 0, "{received}");
        assert_eq!(received + figures.kernel_dropped_count(), sent);
        let losses = sink.losses();
        let expected = if is_shared { (2, 0, true) } else { (1, sent - received, false) };
        assert_eq!((losses.len() as u64, losses[0].records, losses[0].amount_unknown), expected);
        assert_eq!((losses[0].stage.as_str(), losses[0].reason.as_str()), ("syslog", "receive buffer full"));
    }
}

#[test]
fn a_flood_is_received_or_counted() {
    let (address, servers) = bind(&[("node", None, None)]);
    let sink = TestSink::default();
    // A stream that is full after a while.
    sink.set_space(Some(150_000));
    let stage = Stage::serve(address, servers, sink);
    let lines: Vec<Vec<u8>> = logs::lines(0..1000).map(|line| line.syslog().into_bytes()).collect();
    let socket = sender();
    let sent = 200_000_u64;
    let start = Instant::now();
    for number in 0..sent {
        socket.send_to(&lines[number as usize % lines.len()], address).unwrap();
    }
    let sending = start.elapsed();
    let (sink, figures) = stage.finish();
    let (received, dropped, refused) = (figures.messages_of("node"), figures.kernel_dropped_count(), sink.refused());
    println!(
        "{sent} datagrams in {sending:?}: {received} received, {dropped} dropped by the kernel, {refused} refused"
    );
    assert_eq!(received, sink.stored("node").len() as u64);
    assert_eq!(received + dropped + refused, sent);
}
