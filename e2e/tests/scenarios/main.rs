//! Whole conversations, the commands of the `chainscope` binary, and the `make` commands of the README.

mod demo;
mod demo_node;
mod latency;
mod logs;
mod memory;
mod readme;
mod real_session;
mod release;
mod start;
mod synthetic_session;
mod trace;
