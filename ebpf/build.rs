//! Compiles the BPF programs with clang; `cargo:rustc-env=CHAINSCOPE_<NAME>_BPF` names an object for `include_bytes!`.
//!
//! The environment variables `CLANG` and `LLVM_STRIP` override the programs of these names in `PATH`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The objects: `src/bpf/<pillar>/<name>.bpf.c`, or `src/bpf/<name>.bpf.c` if no pillar owns it.
const OBJECTS: [(&str, &str); 6] = [
    ("network", "network"),
    ("memory", "memory"),
    ("memory", "vmemmap"),
    ("trace", "trace"),
    ("latency", "latency"),
    (".", "pidns"),
];
/// Objects with programs that sleep, and the largest frame of theirs that stays on the stack of the thread: Linux 6.13 and later
/// give functions with a larger one a stack for each CPU, which another hit overwrites meanwhile.
const SLEEPABLE: [&str; 1] = ["trace"];
const MAX_SLEEPABLE_FRAME: u32 = 48;
/// Header of libbpf, in the include directories of clang.
const LIBBPF_HEADERS: [&str; 2] = ["/usr/include/bpf/bpf_helpers.h", "/usr/local/include/bpf/bpf_helpers.h"];

fn main() {
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    println!("cargo:rerun-if-env-changed=LLVM_STRIP");

    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        stop("only x86-64 is supported: system call arguments are read from its registers");
    }
    if !LIBBPF_HEADERS.iter().any(|header| Path::new(header).exists()) {
        stop("the libbpf headers are missing (bpf/bpf_helpers.h); on Debian: apt-get install libbpf-dev");
    }

    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_else(|| ".".into()));
    for (pillar, name) in OBJECTS {
        compile(pillar, name, &out);
    }
}

/// Compiles and strips one object.
fn compile(pillar: &str, name: &str, out: &Path) {
    let object = out.join(format!("{name}.bpf.o"));
    let clang = std::env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    // v3: clang 14 needs it for atomics that return the old value. -g: source of BTF and CO-RE relocations.
    run(
        Command::new(clang)
            .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-D__TARGET_ARCH_x86"])
            .args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"])
            .args(SLEEPABLE.contains(&name).then(|| format!("-Wframe-larger-than={MAX_SLEEPABLE_FRAME}")))
            .args(["-c", &format!("src/bpf/{pillar}/{name}.bpf.c"), "-o"])
            .arg(&object),
        "clang",
    );
    // DWARF is nine tenths of the object and not used; BTF is kept.
    let strip = std::env::var_os("LLVM_STRIP").unwrap_or_else(|| "llvm-strip".into());
    run(Command::new(strip).arg("-g").arg(&object), "llvm");
    println!("cargo:rustc-env=CHAINSCOPE_{}_BPF={}", name.to_uppercase(), object.display());
}

/// Runs a tool; `package` is the Debian package that has it.
fn run(command: &mut Command, package: &str) {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => stop(&format!("{program} failed on the BPF programs ({status}); its messages are above")),
        Err(error) => stop(&format!("{program} cannot be run ({error}); on Debian: apt-get install {package}")),
    }
}

/// Fails the build with one line instead of the backtrace of a panic.
fn stop(message: &str) -> ! {
    println!("cargo:warning=chainscope-ebpf: {message}");
    eprintln!("chainscope-ebpf: {message}");
    std::process::exit(1)
}
