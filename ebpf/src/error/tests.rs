use aya::EbpfError;
use aya::maps::MapError;

use super::*;

fn map_error(errno: rustix::io::Errno) -> EbpfError {
    EbpfError::MapError(MapError::CreateError {
        name: "ring".to_owned(),
        io_error: io::Error::from_raw_os_error(errno.raw_os_error()),
    })
}

#[test]
fn missing_capabilities_are_named() {
    let error = Error::from_loader("load the programs".to_owned(), &map_error(rustix::io::Errno::PERM), 4096);
    assert!(error.to_string().contains("CAP_BPF and CAP_PERFMON"), "{error}");
}

#[test]
fn an_old_kernel_is_named_with_the_missing_helper() {
    let error = Error::KernelTooOld { release: "5.10.0-28-amd64".to_owned(), need: "bpf_loop" };
    assert_eq!(
        error.to_string(),
        "kernel 5.10.0-28-amd64 lacks bpf_loop: Linux 5.17 or later, or an older one with it backported, is needed"
    );
}

#[test]
fn missing_memory_names_the_ring() {
    let error = Error::from_loader("load the programs".to_owned(), &map_error(rustix::io::Errno::NOMEM), 1 << 20);
    assert_eq!(error.to_string(), "not enough memory to load the programs (the ring has 1048576 bytes)");
}

#[test]
fn the_log_of_the_verifier_is_shortened_to_its_reason() {
    let mut log = "0: (bf) r6 = r1\n".repeat(5000);
    log.push_str("R1 invalid mem access 'scalar'\nprocessed 5000 insns (limit 1000000)\n");
    assert_eq!(tail(&log), "0: (bf) r6 = r1; R1 invalid mem access 'scalar'");
    assert!(tail(&"x".repeat(100_000)).len() < 400);
}
