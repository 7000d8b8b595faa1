//! Integration tests of merging, trees and exports, against naive implementations.
#![expect(clippy::unwrap_used, reason = "a failed test shows the line")]

mod common;
mod merge;
mod tree;
