//! Scenarios on clusters. Each has clusters of its own, so that several run at the same time; what needs the kernel for itself is in
//! `cluster_alone`.

mod certificates;
mod chart;
mod crd;
#[path = "../grpc/mod.rs"]
mod grpc;
mod hosts;
mod launcher;
mod lives;
mod logs;
mod memory;
mod messages;
mod secrets;
mod starts;
mod traces;
