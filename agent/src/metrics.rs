//! What probes and Prometheus are told: `/livez`, `/readyz` and `/metrics` over plain HTTP.

use std::{fmt::Write as _, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::{Duration, timeout},
};

use chainscope_proto::v1::PodState;

use crate::{delivery::RecordStreams, memory, operator::Reach, worker::Figures};

/// How long a request may take, and its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Requests at a time.
const AT_ONCE: usize = 16;
/// Longest request.
const MAX_REQUEST: usize = 8 << 10;

/// What is known of an agent, for probes and metrics.
#[derive(Debug, Clone)]
pub struct Monitor(Arc<State>);

#[derive(Debug)]
enum State {
    Running {
        streams: RecordStreams,
        figures: Arc<Mutex<Figures>>,
        memory: memory::Board,
        reach: Reach,
        is_in_cluster: bool,
        ended: watch::Receiver<bool>,
    },
    /// This host cannot record; the operator is told.
    Unfit { cause: String, reach: Reach },
}

impl Monitor {
    pub(crate) fn new(
        streams: RecordStreams,
        figures: Arc<Mutex<Figures>>,
        memory: memory::Board,
        reach: Reach,
        is_in_cluster: bool,
        ended: watch::Receiver<bool>,
    ) -> Self {
        Self(Arc::new(State::Running { streams, figures, memory, reach, is_in_cluster, ended }))
    }

    pub(crate) fn unfit(cause: String, reach: Reach) -> Self {
        Self(Arc::new(State::Unfit { cause, reach }))
    }

    /// Whether this program should go on; else why not.
    ///
    /// # Errors
    /// One sentence.
    pub fn live(&self) -> Result<(), String> {
        match &*self.0 {
            State::Running { ended, .. } if *ended.borrow() => Err("the capture has ended".to_owned()),
            _ => Ok(()),
        }
    }

    /// Whether it does its work: it captures, and knows what to observe.
    ///
    /// # Errors
    /// One sentence.
    pub fn ready(&self) -> Result<(), String> {
        self.live()?;
        match &*self.0 {
            State::Running { reach, is_in_cluster: true, .. } if !reach.is_configured() => {
                Err("the operator has not said what to observe, and no earlier configuration was kept".to_owned())
            }
            State::Running { .. } => Ok(()),
            State::Unfit { cause, .. } => Err(cause.clone()),
        }
    }

    /// Everything that is counted, in Prometheus' text format.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut page = Page::default();
        page.family("chainscope_agent_build_info", "gauge", "Always 1; the version of the program.");
        page.sample("chainscope_agent_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
        page.one(
            "chainscope_agent_ready",
            "gauge",
            "Whether the agent captures and knows what to observe.",
            flag(self.ready().is_ok()),
        );
        match &*self.0 {
            State::Running { streams, figures, memory, reach, is_in_cluster, .. } => {
                if *is_in_cluster {
                    page.operator(reach);
                }
                page.figures(&figures.lock());
                page.streams(streams);
                page.memory(&memory.figures());
            }
            State::Unfit { reach, .. } => page.operator(reach),
        }
        page.text
    }

    /// Answers requests until the listener fails.
    ///
    /// # Errors
    /// The listener's.
    pub async fn serve(self, listener: TcpListener) -> std::io::Result<()> {
        let slots = Arc::new(Semaphore::new(AT_ONCE));
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return Ok(()) };
            let (stream, _) = match listener.accept().await {
                Ok(accepted) => accepted,
                // Of the connection, or for want of descriptors: neither lasts.
                Err(cause) => {
                    chainscope_hygiene::warn_limited!(%cause, "a connection to the metrics' port was not accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let monitor = self.clone();
            tokio::spawn(async move {
                // Who does not ask, or does not read the answer, is not waited for.
                let _ = timeout(PATIENCE, monitor.answer(stream)).await;
                drop(slot);
            });
        }
    }

    async fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut request = Vec::new();
        while !request.windows(4).any(|end| end == b"\r\n\r\n") {
            if request.len() > MAX_REQUEST || stream.read_buf(&mut request).await? == 0 {
                return Ok(());
            }
        }
        let response = self.response(&request);
        stream.write_all(response.as_bytes()).await?;
        stream.shutdown().await
    }

    fn response(&self, request: &[u8]) -> String {
        let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let mut words = line.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let health = |state: Result<(), String>| match state {
            Ok(()) => ("200 OK", "ok\n".to_owned()),
            Err(cause) => ("503 Service Unavailable", format!("{cause}\n")),
        };
        let (status, body) = match (method, target.split('?').next().unwrap_or_default()) {
            ("GET" | "HEAD", "/livez") => health(self.live()),
            ("GET" | "HEAD", "/readyz") => health(self.ready()),
            ("GET" | "HEAD", "/metrics") => ("200 OK", self.metrics()),
            ("GET" | "HEAD", _) => ("404 Not Found", "/livez, /readyz, /metrics\n".to_owned()),
            _ => ("405 Method Not Allowed", "only GET\n".to_owned()),
        };
        let length = body.len();
        let body = if method == "HEAD" { "" } else { &body };
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n{body}"
        )
    }
}

fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

/// Metrics as text.
#[derive(Debug, Default)]
struct Page {
    text: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to memory does not fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{name}{labels} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn operator(&mut self, reach: &Reach) {
        let (connected, configured) = (flag(reach.is_connected()), flag(reach.is_configured()));
        self.one("chainscope_agent_operator_connected", "gauge", "Whether the config stream is open.", connected);
        self.one("chainscope_agent_configured", "gauge", "Whether it is known what to observe.", configured);
    }

    fn figures(&mut self, figures: &Figures) {
        type Column = (&'static str, &'static str, &'static str, fn(&crate::worker::NodeFigures) -> f64);
        let columns: [Column; 6] = [
            ("chainscope_agent_processes", "gauge", "Observed processes.", |node| node.processes as f64),
            ("chainscope_agent_messages_total", "counter", "Messages recorded.", |node| node.total.messages as f64),
            ("chainscope_agent_connections_open", "gauge", "Connections followed.", |node| {
                node.total.connections_open as f64
            }),
            ("chainscope_agent_seen_bytes_total", "counter", "Payload that passed.", |node| {
                node.total.bytes_seen as f64
            }),
            ("chainscope_agent_lost_bytes_total", "counter", "Payload that was not captured.", |node| {
                node.total.bytes_lost as f64
            }),
            ("chainscope_agent_lost_records_total", "counter", "Records without room.", |node| {
                node.total.records_lost as f64
            }),
        ];
        for (name, kind, help, value) in columns {
            self.family(name, kind, help);
            for (node, figures) in &figures.nodes {
                self.sample(name, &[("node", node)], value(figures));
            }
        }
        self.family("chainscope_agent_pods", "gauge", "Pods to observe, by state.");
        for state in [
            PodState::WaitingForContainer,
            PodState::WaitingForProcess,
            PodState::Recording,
            PodState::Profiling,
            PodState::Failed,
        ] {
            let count = figures.pods.get(&i32::from(state)).copied().unwrap_or(0);
            let name = state.as_str_name().trim_start_matches("POD_STATE_").to_ascii_lowercase();
            self.sample("chainscope_agent_pods", &[("state", &name)], count as f64);
        }
        for (name, kind, help, value) in [
            (
                "chainscope_agent_generation",
                "gauge",
                "Generation of the configuration in use.",
                figures.generation as f64,
            ),
            (
                "chainscope_agent_held_processes",
                "gauge",
                "Processes captured before they are configured.",
                figures.held_processes as f64,
            ),
            ("chainscope_agent_held_bytes", "gauge", "Payload held of them.", figures.held_bytes as f64),
            (
                "chainscope_agent_discarded_processes_total",
                "counter",
                "Held processes that nobody configured.",
                figures.discarded.processes as f64,
            ),
            (
                "chainscope_agent_discarded_bytes_total",
                "counter",
                "Payload of them that was thrown away.",
                figures.discarded.bytes as f64,
            ),
        ] {
            self.one(name, kind, help, value);
        }
    }

    fn memory(&mut self, figures: &memory::Figures) {
        use memory::{KINDS, NodeFigures, RESIDENT};
        let name = "chainscope_agent_memory_processes";
        self.family(name, "gauge", "Processes whose memory is profiled.");
        for (node, figures) in &figures.nodes {
            self.sample(name, &[("node", node)], figures.processes as f64);
        }
        type Column = (&'static str, &'static str, &'static [&'static str; 3], fn(&NodeFigures) -> &[u64; 3]);
        let columns: [Column; 3] = [
            ("chainscope_agent_memory_resident_bytes", "Resident memory as the kernel counts it.", &RESIDENT, |node| {
                &node.resident_bytes
            }),
            (
                "chainscope_agent_memory_attributed_bytes",
                "Memory of which the code that holds it is known.",
                &KINDS,
                |node| &node.attributed_bytes,
            ),
            (
                "chainscope_agent_memory_before_attach_bytes",
                "Memory that was resident before it was profiled, and still is.",
                &KINDS,
                |node| &node.before_attach_bytes,
            ),
        ];
        for (name, help, kinds, values) in columns {
            self.family(name, "gauge", help);
            for (node, figures) in &figures.nodes {
                for (kind, value) in kinds.iter().zip(values(figures)) {
                    self.sample(name, &[("node", node), ("kind", kind)], *value as f64);
                }
            }
        }
        let name = "chainscope_agent_memory_unattributed_bytes";
        self.family(name, "gauge", "Anonymous memory of which the kernel's count and the profile differ.");
        for (node, figures) in &figures.nodes {
            self.sample(name, &[("node", node)], figures.unattributed_bytes as f64);
        }
        let name = "chainscope_agent_memory_stacks";
        self.family(name, "gauge", "Stacks of the profiled processes, by how their unwinding ended.");
        for (node, figures) in &figures.nodes {
            for (end, count) in &figures.stacks {
                self.sample(name, &[("node", node), ("end", end)], *count as f64);
            }
        }
        let name = "chainscope_agent_memory_lost_total";
        self.family(name, "counter", "What the memory profiler could not account for, by reason.");
        for (reason, count) in &figures.lost {
            self.sample(name, &[("reason", reason)], *count as f64);
        }
        for (name, help, value) in [
            ("chainscope_agent_memory_tree_calls", "Calls in the tree of all stacks.", figures.calls),
            ("chainscope_agent_memory_tree_room", "Calls that the tree has room for.", figures.calls_room),
            ("chainscope_agent_memory_symbol_bytes", "Memory for symbols that are being read.", figures.symbol_bytes),
            (
                "chainscope_agent_memory_failed",
                "Whether no memory can be profiled; the log says why.",
                u64::from(figures.error.is_some()),
            ),
        ] {
            self.one(name, "gauge", help, value as f64);
        }
    }

    fn streams(&mut self, streams: &RecordStreams) {
        let status = streams.status();
        self.family("chainscope_agent_spool_bytes", "gauge", "Records that are not acknowledged, in bytes.");
        for stream in &status {
            self.sample("chainscope_agent_spool_bytes", &[("node", &stream.node)], stream.pending_bytes as f64);
        }
        self.family("chainscope_agent_spool_records", "gauge", "Records that are not acknowledged.");
        for stream in &status {
            self.sample("chainscope_agent_spool_records", &[("node", &stream.node)], stream.pending_records as f64);
        }
        self.family("chainscope_agent_spool_dropped_records_total", "counter", "Records dropped for want of room.");
        for stream in &status {
            self.sample(
                "chainscope_agent_spool_dropped_records_total",
                &[("node", &stream.node)],
                stream.dropped.records as f64,
            );
        }
        let oldest = streams.oldest_pending_ns().map_or(0.0, |oldest| oldest as f64 / 1e9);
        let help = "When the oldest record that is not acknowledged happened; 0: there is none.";
        self.one("chainscope_agent_spool_oldest_timestamp_seconds", "gauge", help, oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unfit() -> Monitor {
        Monitor::unfit("CAP_BPF is missing".to_owned(), Reach::default())
    }

    #[test]
    fn what_cannot_record_is_alive_but_not_ready() {
        let monitor = unfit();
        assert!(monitor.response(b"GET /livez HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"));
        let ready = monitor.response(b"GET /readyz?verbose HTTP/1.1\r\n\r\n");
        assert!(ready.starts_with("HTTP/1.1 503 ") && ready.ends_with("\r\n\r\nCAP_BPF is missing\n"), "{ready}");
        assert!(monitor.metrics().contains("\nchainscope_agent_ready 0\n"));
    }

    #[test]
    fn odd_requests_are_answered() {
        let monitor = unfit();
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"\r\n\r\n", "405"),
            (b"\xff\xfe \0\r\n\r\n", "405"),
        ] {
            assert!(monitor.response(request).starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}");
        }
        let head = monitor.response(b"HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.ends_with("\r\n\r\n"), "{head}");
    }

    #[test]
    fn a_label_cannot_end_itself() {
        let mut page = Page::default();
        page.sample("a", &[("node", "x\"} 1\nb{y=\"\\")], 2.0);
        assert_eq!(page.text, "a{node=\"x\\\"} 1\\nb{y=\\\"\\\\\"} 2\n");
    }

    #[tokio::test]
    async fn it_answers_over_a_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(unfit().serve(listener));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("chainscope_agent_operator_connected 0\n"), "{answer}");
        server.abort();
    }
}
