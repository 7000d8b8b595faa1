//! Empty; Cargo resolves build-dependencies only for packages with a build script.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
