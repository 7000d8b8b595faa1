//! The copy floor: a program that copies the same bytes into the same kind of ring and does nothing else, and an empty one.

use std::path::Path;
use std::time::Duration;

use aya::maps::PerCpuArray;
use aya::programs::BtfTracePoint;
use aya::{Btf, Ebpf, EbpfLoader, Pod};
use chainscope_ebpf::RingReader;
use chainscope_ebpf::network::NetworkOptions;
use chainscope_testing::program;

/// Greatest record of the product.
const MAX_PIECE: usize = 32 << 10;

/// `struct sums`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) sent: u64,
    pub(crate) copied: u64,
    pub(crate) lost: u64,
    since_query: u64,
}

// SAFETY: a repr(C) struct of integers without padding, so every bit pattern is a value.
unsafe impl Pod for Sums {}

/// The attached program that copies.
pub(crate) struct Floor {
    reader: RingReader,
    sums: PerCpuArray<aya::maps::MapData, Sums>,
    /// Owns the program.
    _bpf: Ebpf,
}

impl Floor {
    /// Copies what this process writes, `write` bytes at a time.
    pub(crate) fn attach(pid: u32, write: usize) -> Self {
        let mut bpf = load(pid, write);
        attach(&mut bpf, "copy_floor");
        let options = NetworkOptions::default();
        let reader = RingReader::new(&mut bpf, options.ring_bytes, options.wake_bytes).expect("the ring");
        let sums = PerCpuArray::try_from(bpf.take_map("sums").expect("a map")).expect("an array");
        Self { reader, sums, _bpf: bpf }
    }

    /// As `NetworkProbe::poll`.
    pub(crate) fn poll(&mut self, timeout: Duration, f: &mut dyn FnMut(&[u8])) -> usize {
        self.reader.poll(timeout, f).expect("the ring")
    }

    pub(crate) fn sums(&self) -> Sums {
        let cpus = self.sums.get(&0, 0).expect("an element");
        cpus.iter().fold(Sums::default(), |sum, cpu| Sums {
            sent: sum.sent + cpu.sent,
            copied: sum.copied + cpu.copied,
            lost: sum.lost + cpu.lost,
            since_query: 0,
        })
    }
}

/// Attaches the empty program; dropping the object detaches it.
pub(crate) fn attach_empty() -> Ebpf {
    let mut bpf = load(0, MAX_PIECE);
    attach(&mut bpf, "empty");
    bpf
}

fn load(pid: u32, write: usize) -> Ebpf {
    let options = NetworkOptions::default();
    EbpfLoader::new()
        .override_global("watched", &pid, true)
        .override_global("wake_bytes", &options.wake_bytes, true)
        .map_max_entries("ring", options.ring_bytes)
        .load(&object(write.min(MAX_PIECE)))
        .expect("the maps")
}

fn attach(bpf: &mut Ebpf, name: &str) {
    let btf = Btf::from_sys_fs().expect("the BTF of the kernel");
    let program: &mut BtfTracePoint = bpf.program_mut(name).expect("a program").try_into().expect("of this type");
    program.load("sock_send_length", &btf).unwrap_or_else(|error| panic!("{error:?}"));
    program.attach().expect("the tracepoint");
}

/// Compiles the programs for records of this size, which has to be a constant.
fn object(piece: usize) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = std::env::temp_dir().join(format!("chainscope-floor-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let name = format!("{piece}.o");
    let object = dir.join(&name);
    if !object.exists() {
        let source = root.join("examples/network_cost/floor.bpf.c");
        let _ = program::compile_bpf(&source, &root.join("src/bpf"), &dir, &name, &[&format!("-DPIECE={piece}")]);
    }
    std::fs::read(object).expect("the object")
}

/// Removes the compiled objects.
pub(crate) fn clean() {
    // It is in the directory for temporary files.
    let _ = std::fs::remove_dir_all(std::env::temp_dir().join(format!("chainscope-floor-{}", std::process::id())));
}
