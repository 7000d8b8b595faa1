//! What loading leaves on the heap: the types of the kernel, some 20 MiB once parsed, are not needed afterwards.

use chainscope_ebpf::network::{NetworkOptions, NetworkProbe};
use chainscope_testing::usage;

/// More than the probe itself and the test take; less than the types of the kernel.
const MAX_GROWTH: u64 = 8 << 20;

#[test]
fn loading_returns_the_memory_of_the_kernels_types() {
    let anonymous = || usage::memory(std::process::id(), "RssAnon");
    let before = anonymous();
    let _probe = NetworkProbe::load(&NetworkOptions::default()).expect("the probe is loaded");
    let grown = anonymous().saturating_sub(before);
    assert!(grown <= MAX_GROWTH, "{grown} bytes");
}
