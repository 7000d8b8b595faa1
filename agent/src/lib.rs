//! chainscope-agent
