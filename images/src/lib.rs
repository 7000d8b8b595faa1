//! Container images without a registry or a container engine: a program and its shared libraries in an otherwise empty root, as an
//! OCI archive.
//!
//! - [`Image`] and [`Entry`]: any image, written as an archive;
//! - [`program`]: a program with its libraries, and the records of their Debian packages for vulnerability scanners;
//! - [`Release`]: the images of Chainscope.

mod archive;
mod libraries;
mod release;

pub use archive::{Entry, Image};
pub use libraries::program;
pub use release::{Component, NONROOT, Release, passwd};
