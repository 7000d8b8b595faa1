#![allow(clippy::unwrap_used)]
use chainscope_profile::*;
use chainscope_testing::memory::{FrameName, Recorder};
use std::sync::Arc;
fn main() {
    let mut r = Recorder::new("9732", 4711, 1_700_000_000_000_000_000);
    let f = |n: &str, o: u64| FrameName::own(n, o);
    let main = f("light_node::main::h0123456789abcdef", 0x1000);
    let start = FrameName::library("libc.so.6", Some("__libc_start_main"), 0x29d90);
    let malloc = FrameName::library("libc.so.6", Some("malloc"), 0x9_7f00);
    let inl = FrameName { inlined: true, ..f("alloc::vec::Vec<T>::push <&'a str>", 0x2000) };
    let outer = f("storage::Context::load", 0x2000);
    r.hold(&[start.clone(), main.clone(), outer.clone(), inl.clone(), malloc.clone()], [50_000, 0, 0]);
    r.hold(&[start.clone(), main.clone(), outer, inl], [2_000, 0, 10]);
    r.hold(&[start.clone(), main.clone(), f("p2p::connect", 0x3000), malloc.clone()], [9_000, 100, 500]);
    r.hold(&[start.clone(), main, FrameName::library("libpthread.so.0", Some("read"), 0x1297a)], [0, 30_000, 0]);
    r.hold(&[start, FrameName::library("libx.so", None, 0x77)], [700, 0, 0]);
    r.before_attach = [4000, 1000, 0];
    let take = |s| { let mut p = Profile::default(); p.take(s, &Limits::default()); Arc::new(p.data().unwrap().clone()) };
    let then = take(r.keyframe());
    let dir = std::env::args().nth(1).unwrap();
    let stacks = Stacks::now(&[Arc::clone(&then)]);
    std::fs::write(format!("{dir}/mem.pb"), pprof(&stacks, Kinds::RESIDENT, 1_700_000_000_000_000_000)).unwrap();
    let shape = Shape { reverse: true, threshold: 0, kinds: Kinds::RESIDENT, measure: Measure::Now };
    let tree = Tree::new(&stacks, &shape, &|| false).unwrap();
    std::fs::write(format!("{dir}/flame.svg"), flame_graph(&tree, &Flame { title: "memory of pid 4711", is_compared: false })).unwrap();
    r.hold(&[FrameName::library("libc.so.6", Some("__libc_start_main"), 0x29d90), f("light_node::main::h0123456789abcdef", 0x1000), f("p2p::connect", 0x3000), malloc], [29_000, 100, 500]);
    r.hold(&[FrameName::library("libc.so.6", Some("__libc_start_main"), 0x29d90), f("light_node::main::h0123456789abcdef", 0x1000), FrameName::library("libpthread.so.0", Some("read"), 0x1297a)], [0, 10_000, 0]);
    let now = take(r.keyframe());
    let both = Stacks::compared(&[now], &[then]);
    let tree = Tree::new(&both, &Shape { measure: Measure::Both, ..shape }, &|| false).unwrap();
    std::fs::write(format!("{dir}/diff.svg"), flame_graph(&tree, &Flame { title: "memory of pid 4711, compared", is_compared: true })).unwrap();
    println!("{}", Tree::new(&stacks, &shape, &|| false).unwrap().node(0).value);
}
