//! chainscope-ebpf
