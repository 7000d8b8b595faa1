//! chainscope-aggregator
