//! Tests of the crate with compiled programs, crafted files, and programs of the system.

mod arguments;
mod contract_files;
mod hostile;
mod nodes;
mod readelf;
mod support;
