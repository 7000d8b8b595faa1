//! chainscope-store
