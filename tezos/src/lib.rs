//! chainscope-tezos
