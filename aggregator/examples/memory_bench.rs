//! Measures `/v1` of a process with many distinct stacks over HTTP, while its agent sends deltas.
//!
//! `memory_bench [stacks] [--serve]`, by default 100,000 stacks. `floor` is the response of `/v1/tree` out of memory, by an HTTP
//! server that does nothing else, to the same client; `alone` its tree, without JSON and HTTP. `intake` is the time from a
//! delta of 1,000 changes to its acknowledgement: alone, and while trees are requested without a pause. With `--serve` the
//! API is served until the program is terminated.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program that prints its figures")]

use std::{
    convert::Infallible,
    hint::black_box,
    io::Read as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, Bytes},
};
use chainscope_aggregator::{Aggregator, Config, NodeConfig};
use chainscope_profile::{Kinds, Limits, Measure, MergeOutcome, Profile, Stacks, Tree, TreeOptions};
use chainscope_proto::v1::{
    Hello, MemoryState, RecordReply, RecordRequest, record_reply::Reply, record_request::Request,
};
use chainscope_store::{Store, StoreOptions};
use chainscope_testing::memory::{FrameName, Recorder, in_parts};
use chainscope_testing::usage;
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};
use tokio::sync::mpsc::{Receiver, Sender};

const ROUNDS: usize = 21;
/// Entries of a part: below a mebibyte, whatever they are.
const PART: usize = 10_000;

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let serve = arguments.iter().any(|argument| argument == "--serve");
    arguments.retain(|argument| argument != "--serve");
    let stacks = arguments.first().map_or(100_000, |text| text.parse().expect("a number of stacks"));

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), StoreOptions { ballast_bytes: 0, ..StoreOptions::default() }).unwrap();
    let mut config = Config::new(store, "127.0.0.1:0".parse().unwrap());
    config.nodes.push(NodeConfig::new("9732"));
    let running = runtime.block_on(Aggregator::start(config)).unwrap();
    let (requests, replies) = {
        let _inside = runtime.enter();
        running.connect()
    };
    let mut agent = Agent { runtime: &runtime, requests, replies };
    agent.hello();

    let mut random = SmallRng::seed_from_u64(7);
    let mut recorder = Recorder::new("9732", std::process::id(), 1);
    fill(&mut recorder, &mut random, stacks);
    let keyframe = recorder.keyframe();
    let before = resident();
    let began = Instant::now();
    agent.send_state(in_parts(&keyframe, PART));
    println!("keyframe of {stacks} stacks: {:.1} ms to its acknowledgement", ms(began.elapsed()));
    println!(
        "memory of the aggregator for it: {:.1} MiB\n",
        resident().saturating_sub(before) as f64 / f64::from(1 << 20)
    );

    let url = format!("http://{}", running.http_addr());
    println!("{:<48}{:>10}{:>10}{:>10}{:>12}", "", "best, ms", "median", "worst", "KiB");
    for path in [
        "/v1/tree",
        "/v1/tree?reverse=true",
        "/v1/tree?threshold=4096",
        "/v1/tree?threshold=4096&reverse=true",
        "/v1/tree?short=true",
        "/v1/flamegraph",
        "/v1/pprof",
    ] {
        let (times, size) = request(&format!("{url}{path}"));
        show(path, times, Some(size));
    }
    show("tree of /v1/tree, alone", tree_alone(keyframe), None);
    let (times, size) = request(&runtime.block_on(serve_from_memory(read(&format!("{url}/v1/tree")))));
    show("floor of /v1/tree", times, Some(size));
    let alone = intake(&mut agent, &mut recorder, &mut random);
    show("intake of a delta, alone", alone, None);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let url = &url;
        let is_over = &is_over;
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                read(&format!("{url}/v1/tree"));
            }
        });
        let beside = intake(&mut agent, &mut recorder, &mut random);
        is_over.store(true, Ordering::Relaxed);
        show("intake of a delta, trees requested meanwhile", beside, None);
    });
    if serve {
        println!("\n{url}/v1/tree");
        loop {
            thread::park();
        }
    }
    drop(agent);
    runtime.block_on(running.shutdown());
}

struct Agent<'a> {
    runtime: &'a tokio::runtime::Runtime,
    requests: Sender<RecordRequest>,
    replies: Receiver<RecordReply>,
}

impl Agent<'_> {
    fn send(&self, request: Request) {
        self.runtime.block_on(self.requests.send(RecordRequest { request: Some(request) })).unwrap();
    }

    fn reply(&mut self) -> Reply {
        self.runtime.block_on(self.replies.recv()).expect("the session goes on").reply.unwrap()
    }

    fn hello(&mut self) {
        let hello = Hello {
            least_version: 1,
            greatest_version: 1,
            agent: "bench".into(),
            epoch: vec![7; 16],
            ..Hello::default()
        };
        self.send(Request::Hello(hello));
        assert!(matches!(self.reply(), Reply::Welcome(welcome) if welcome.memory));
    }

    fn send_state(&mut self, parts: Vec<MemoryState>) {
        for part in parts {
            self.send(Request::Memory(part));
        }
        assert!(matches!(self.reply(), Reply::Memory(ack) if ack.refused.is_empty()));
    }
}

fn intake(agent: &mut Agent<'_>, recorder: &mut Recorder, random: &mut SmallRng) -> Vec<Duration> {
    let each = |_| {
        fill(recorder, random, 1000);
        let base = recorder.sequence;
        let delta = recorder.delta(base);
        let began = Instant::now();
        agent.send_state(vec![delta]);
        began.elapsed()
    };
    (0..ROUNDS).map(each).collect()
}

/// Distinct stacks of 12 to 28 frames that branch as programs do: a function calls some others, most often the first ones.
fn fill(recorder: &mut Recorder, random: &mut SmallRng, stacks: usize) {
    for _ in 0..stacks {
        let depth = random.random_range(12..=28);
        let mut stack = Vec::with_capacity(depth + 1);
        let mut function = 0u64;
        for _ in 0..depth {
            let callee = random.random_range(0..10u64).min(random.random_range(0..10)).min(random.random_range(0..10));
            function = (function.wrapping_mul(31) + callee + 1) % 30_000;
            let name = format!("node::module_{}::function_{function}::h0123456789abcdef", function % 97);
            stack.push(FrameName::own(&name, function << 6));
        }
        stack.push(FrameName::library("libc.so.6", Some("malloc"), 0x9_7f00));
        recorder.hold(&stack, [random.random_range(1..64), random.random_range(0..4), 0]);
    }
}

/// Times of the tree that `/v1/tree` responds with, without JSON and HTTP.
fn tree_alone(keyframe: MemoryState) -> Vec<Duration> {
    let mut profile = Profile::default();
    let outcome = profile.merge(keyframe, &Limits::default());
    assert!(matches!(outcome, MergeOutcome::Merged(_)), "{outcome:?}");
    let stacks = Stacks::now(&[Arc::new(profile.data().expect("merged").clone())]);
    let options = TreeOptions { reverse: false, threshold: 256, kinds: Kinds::RESIDENT, measure: Measure::Now };
    times(|| {
        black_box(Tree::new(&stacks, &options, &|| false)).expect("within the limit");
    })
}

/// Times of requests one after the other, and the size of the response.
fn request(url: &str) -> (Vec<Duration>, usize) {
    let mut size = 0;
    let times = times(|| size = read(url).len());
    (times, size)
}

/// Times of all rounds.
fn times(mut act: impl FnMut()) -> Vec<Duration> {
    let each = |_| {
        let began = Instant::now();
        act();
        began.elapsed()
    };
    (0..ROUNDS).map(each).collect()
}

fn read(url: &str) -> Vec<u8> {
    let mut body = Vec::new();
    ureq::get(url).call().unwrap().into_body().into_reader().read_to_end(&mut body).unwrap();
    body
}

/// Starts a server of one text, in blocks as large as those of the aggregator, and returns its URL.
async fn serve_from_memory(text: Vec<u8>) -> String {
    let blocks: Vec<Bytes> = text.chunks(960 << 10).map(Bytes::copy_from_slice).collect();
    let respond =
        async move || Body::from_stream(futures::stream::iter(blocks.clone().into_iter().map(Ok::<_, Infallible>)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, Router::new().route("/", axum::routing::get(respond))).await });
    format!("http://{address}/")
}

fn show(name: &str, mut times: Vec<Duration>, size: Option<usize>) {
    times.sort();
    let at = |place: usize| times.get(place).copied().map_or(0.0, ms);
    let size = size.map_or(String::new(), |size| format!("{}", size >> 10));
    println!("{name:<48}{:>10.2}{:>10.2}{:>10.2}{size:>12}", at(0), at(times.len() / 2), at(times.len() - 1));
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    usage::memory(std::process::id(), "VmRSS")
}
