//! Health and metrics of the agent over plain HTTP: `/livez`, `/readyz` and `/metrics`.
//!
//! hyper serves, prometheus-client writes the OpenMetrics text. Both are in the agent already or small: tonic brings
//! hyper into the privileged image, prometheus-client adds two crates without dependencies of their own. axum would add a
//! router for three paths.

use std::{convert::Infallible, sync::Arc};

use chainscope_proto::v1::PodState;
use hyper::{Method, Request, Response, StatusCode, body::Incoming, header, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use prometheus_client::{
    encoding::text::encode,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::{Duration, timeout},
};

use crate::{
    delivery::RecordStreams,
    openmetrics::{counters, gauge, gauges, node},
    operator::Reach,
    pillar::PillarStatus,
    status::PodFigures,
    thread::Heartbeat,
};

/// Time limit of a connection, from the request to the end of the response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a connection that could not be accepted, for example for lack of descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// Connections at a time.
const MAX_CONNECTIONS: usize = 16;
/// Longest head of a request.
const MAX_REQUEST_HEAD: usize = 8 << 10;
/// Media type of the encoder's output.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// Health and metrics of an agent.
#[derive(Debug, Clone)]
pub struct Monitor(Arc<State>);

/// The sources of the health and metrics of an agent that records.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) streams: RecordStreams,
    pub(crate) pillars: Vec<Arc<dyn PillarStatus>>,
    /// Of the threads that belong to no pillar.
    pub(crate) heartbeats: Vec<Heartbeat>,
    pub(crate) figures: Arc<Mutex<PodFigures>>,
    /// On a cluster.
    pub(crate) reach: Option<Reach>,
    pub(crate) ended: watch::Receiver<bool>,
}

impl Sources {
    fn all_heartbeats(&self) -> impl Iterator<Item = Heartbeat> {
        let of_pillars = self.pillars.iter().flat_map(|pillar| pillar.heartbeats());
        of_pillars.chain(self.heartbeats.iter().cloned())
    }
}

#[derive(Debug)]
enum State {
    Running(Sources),
    /// Nothing can be recorded on this host; the operator gets the cause.
    Unsupported {
        cause: String,
        reach: Reach,
    },
}

impl Monitor {
    pub(crate) fn new(sources: Sources) -> Self {
        Self(Arc::new(State::Running(sources)))
    }

    pub(crate) fn unsupported(cause: String, reach: Reach) -> Self {
        Self(Arc::new(State::Unsupported { cause, reach }))
    }

    /// Whether the threads of the agent are running.
    ///
    /// # Errors
    /// One sentence with the cause.
    pub fn live(&self) -> Result<(), String> {
        match &*self.0 {
            State::Running(sources) if *sources.ended.borrow() => Err("the capture has ended".to_owned()),
            State::Running(sources) => match sources.all_heartbeats().find(Heartbeat::is_stuck) {
                Some(stuck) => {
                    let (stage, age) = (stuck.stage, stuck.age().as_secs());
                    Err(format!("the stage \"{stage}\" has made no progress for {age} seconds"))
                }
                None => Ok(()),
            },
            State::Unsupported { .. } => Ok(()),
        }
    }

    /// Whether the agent captures, and has a configuration.
    ///
    /// # Errors
    /// One sentence with the cause.
    pub fn ready(&self) -> Result<(), String> {
        self.live()?;
        match &*self.0 {
            State::Running(Sources { reach: Some(reach), .. }) if !reach.is_configured() => {
                Err("no configuration was received from the operator, and there is no earlier one on disk".to_owned())
            }
            State::Running(_) => Ok(()),
            State::Unsupported { cause, .. } => Err(cause.clone()),
        }
    }

    /// All metrics, in the OpenMetrics text format.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        // Writing to memory does not fail.
        let _ = encode(&mut text, &self.registry());
        text
    }

    /// The current value of every metric.
    fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("chainscope_agent");
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        gauges(&mut registry, "build_info", "Always 1; the version of the program", [(version, 1)]);
        let ready = u64::from(self.ready().is_ok());
        gauge(&mut registry, "ready", "1 if the agent captures and has a configuration", ready);
        match &*self.0 {
            State::Running(sources) => {
                if let Some(reach) = &sources.reach {
                    register_operator(&mut registry, reach);
                }
                register_pods(&mut registry, &sources.figures.lock());
                register_streams(&mut registry, &sources.streams);
                sources.pillars.iter().for_each(|pillar| pillar.register(&mut registry));
                register_heartbeats(&mut registry, sources.all_heartbeats());
            }
            State::Unsupported { reach, .. } => register_operator(&mut registry, reach),
        }
        registry
    }

    /// Answers requests until the listener fails.
    ///
    /// # Errors
    /// The listener's.
    pub async fn serve(self, listener: TcpListener) -> std::io::Result<()> {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return Ok(()) };
            let (stream, _) = match listener.accept().await {
                Ok(accepted) => accepted,
                // An error of the connection, or a temporary lack of descriptors.
                Err(cause) => {
                    chainscope_hygiene::warn_limited!(%cause, "a connection to the metrics' port was not accepted");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                    continue;
                }
            };
            let monitor = self.clone();
            tokio::spawn(async move {
                // A client that sends no request or does not read the response is disconnected.
                let _ = timeout(REQUEST_TIMEOUT, monitor.answer(stream)).await;
                drop(slot);
            });
        }
    }

    async fn answer(&self, stream: TcpStream) -> hyper::Result<()> {
        let service = service_fn(|request: Request<Incoming>| {
            let response = self.response(request.method(), request.uri().path());
            async { Ok::<_, Infallible>(response) }
        });
        let mut connection = http1::Builder::new();
        connection.keep_alive(false).max_buf_size(MAX_REQUEST_HEAD);
        connection.serve_connection(TokioIo::new(stream), service).await
    }

    /// The response; hyper leaves the body out where the method is HEAD.
    fn response(&self, method: &Method, path: &str) -> Response<String> {
        let health = |state: Result<(), String>| match state {
            Ok(()) => (StatusCode::OK, PLAIN_TEXT, "ok\n".to_owned()),
            Err(cause) => (StatusCode::SERVICE_UNAVAILABLE, PLAIN_TEXT, format!("{cause}\n")),
        };
        let (status, media_type, body) = match (method, path) {
            (&Method::GET | &Method::HEAD, "/livez") => health(self.live()),
            (&Method::GET | &Method::HEAD, "/readyz") => health(self.ready()),
            (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, OPEN_METRICS, self.metrics()),
            (&Method::GET | &Method::HEAD, _) => {
                (StatusCode::NOT_FOUND, PLAIN_TEXT, "/livez, /readyz, /metrics\n".to_owned())
            }
            _ => (StatusCode::METHOD_NOT_ALLOWED, PLAIN_TEXT, "only GET\n".to_owned()),
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(media_type));
        response
    }
}

fn register_operator(registry: &mut Registry, reach: &Reach) {
    let (connected, configured) = (u64::from(reach.is_connected()), u64::from(reach.is_configured()));
    gauge(registry, "operator_connected", "1 if the config stream is open", connected);
    gauge(registry, "configured", "1 if there is a configuration", configured);
}

fn register_pods(registry: &mut Registry, figures: &PodFigures) {
    let states = [
        PodState::WaitingForContainer,
        PodState::WaitingForProcess,
        PodState::Recording,
        PodState::Profiling,
        PodState::Failed,
    ];
    let sample = |state: PodState| {
        let name = state.as_str_name().trim_start_matches("POD_STATE_").to_ascii_lowercase();
        let count = figures.pods.get(&i32::from(state)).copied().unwrap_or(0);
        (vec![("state", name)], i64::try_from(count).unwrap_or(i64::MAX))
    };
    gauges(registry, "pods", "Pods to observe, by state", states.map(sample));
    gauge(registry, "generation", "Generation of the configuration in use", figures.generation);
}

fn register_streams(registry: &mut Registry, streams: &RecordStreams) {
    let status = streams.status();
    let size = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
    let samples = status.iter().map(|stream| (node(&stream.node), size(stream.pending_bytes)));
    gauges(registry, "spool_bytes", "Records that are not acknowledged, in bytes", samples);
    let samples = status.iter().map(|stream| (node(&stream.node), size(stream.pending_records)));
    gauges(registry, "spool_records", "Records that are not acknowledged", samples);
    let samples = status.iter().map(|stream| (node(&stream.node), stream.dropped.records));
    counters(registry, "spool_dropped_records", "Records dropped because the spool or queue is full", samples);
    let oldest = Gauge::<f64, std::sync::atomic::AtomicU64>::default();
    oldest.set(streams.oldest_pending_ns().map_or(0.0, |oldest| oldest as f64 / 1e9));
    let help = "Time of the oldest record that is not acknowledged; 0 if there is none";
    registry.register("spool_oldest_timestamp_seconds", help, oldest);
}

fn register_heartbeats(registry: &mut Registry, heartbeats: impl Iterator<Item = Heartbeat>) {
    let ages = Family::<[(&'static str, &'static str); 1], Gauge<f64, std::sync::atomic::AtomicU64>>::default();
    for heartbeat in heartbeats {
        ages.get_or_create(&[("stage", heartbeat.stage)]).set(heartbeat.age().as_secs_f64());
    }
    registry.register("heartbeat_age_seconds", "Time since a stage made progress last", ages);
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn unsupported() -> Monitor {
        Monitor::unsupported("CAP_BPF is missing".to_owned(), Reach::default())
    }

    /// What a socket answers to these bytes.
    async fn answered(request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(unsupported().serve(listener));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        server.abort();
        answer
    }

    #[test]
    fn an_unsupported_host_is_alive_but_not_ready() {
        let monitor = unsupported();
        assert_eq!(monitor.response(&Method::GET, "/livez").status(), StatusCode::OK);
        let ready = monitor.response(&Method::GET, "/readyz");
        assert_eq!((ready.status(), ready.body().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "CAP_BPF is missing\n"));
        assert!(monitor.metrics().contains("\nchainscope_agent_ready 0\n"), "{}", monitor.metrics());
    }

    #[test]
    fn a_stuck_stage_is_not_alive_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let folder = crate::folder::Folder::open(dir.path()).unwrap();
        let streams = RecordStreams::open(&folder, 1 << 20, None, std::iter::empty()).unwrap();
        let (_end, ended) = watch::channel(false);
        let mut heartbeats = vec![Heartbeat::new("discovery")];
        let foreign = Heartbeat::of_foreign_calls("identity").aged(Duration::from_secs(500));
        foreign.set(Some(std::time::Instant::now() - Duration::from_secs(100)));
        heartbeats.push(foreign);
        let monitor = |heartbeats: &[Heartbeat]| {
            Monitor::new(Sources {
                streams: streams.clone(),
                pillars: Vec::new(),
                heartbeats: heartbeats.to_vec(),
                figures: Arc::default(),
                reach: None,
                ended: ended.clone(),
            })
        };
        assert_eq!(monitor(&heartbeats).live(), Ok(()), "other processes cannot end the agent");
        let ages = monitor(&heartbeats).metrics();
        assert!(ages.contains("heartbeat_age_seconds{stage=\"identity\"} 100."), "{ages}");
        heartbeats.push(Heartbeat::new("network reader").aged(Duration::from_secs(70)));
        let response = monitor(&heartbeats).response(&Method::GET, "/livez");
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.body(), "the stage \"network reader\" has made no progress for 70 seconds\n");
    }

    #[tokio::test]
    async fn unusual_requests_are_answered() {
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], "404"),
            (b"GET /readyz?verbose HTTP/1.1\r\nHost: x\r\n\r\n", "503"),
            (b"POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "405"),
            (b"x\r\n\r\n", "400"),
            (b"\xff\xfe \0\r\n\r\n", "400"),
        ] {
            let answer = answered(request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?} {answer}");
        }
        let head = answered(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    }

    #[test]
    fn a_label_value_is_escaped() {
        let mut registry = Registry::default();
        gauges(&mut registry, "a", "h", [(node("x\"} 1\nb{y=\"\\"), 2)]);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(text.contains("a{node=\"x\\\"} 1\\nb{y=\\\"\\\\\"} 2\n"), "{text}");
    }

    #[tokio::test]
    async fn metrics_are_served_over_a_socket() {
        let answer = answered(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.contains("chainscope_agent_operator_connected 0\n"), "{answer}");
        assert!(answer.contains(OPEN_METRICS) && answer.ends_with("# EOF\n"), "{answer}");
    }
}
