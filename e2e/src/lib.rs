//! chainscope-e2e
