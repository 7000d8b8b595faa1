//! chainscope-spec
