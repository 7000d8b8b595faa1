//! chainscope-cli
