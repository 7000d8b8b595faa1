//! Loads and attaches the programs of the network object.

use std::collections::HashSet;

use aya::programs::{BtfTracePoint, Program, ProgramError, RawTracePoint, RawTracePointRunOptions, TestRun as _};
use aya::{Btf, Ebpf, EbpfLoader};

use super::options::{CaptureMode, ExecEvents, NetworkOptions};
use crate::error::Error;
use crate::kernel;
use crate::load::{Kernel, retry_eagain};
use crate::pid_namespace::PidNamespace;

/// The object that build.rs compiled, aligned as the ELF parser requires.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("CHAINSCOPE_NETWORK_BPF"));

/// The loaded object. Nothing is attached yet.
pub(super) struct Object {
    pub(super) bpf: Ebpf,
    pub(super) mode: CaptureMode,
    /// Loaded programs and their tracepoints, in the order in which they are attached.
    programs: Vec<(&'static str, &'static str)>,
    ring_bytes: u32,
}

impl Object {
    /// Creates the maps and loads the programs.
    ///
    /// # Errors
    /// See [`NetworkProbe::load`](super::NetworkProbe::load).
    pub(super) fn load(options: &NetworkOptions) -> Result<Self, Error> {
        let page = rustix::param::page_size();
        let ring_bytes = options.ring_bytes;
        if !ring_bytes.is_power_of_two() || (ring_bytes as usize) < page {
            return Err(Error::RingSize(ring_bytes));
        }
        let kernel = Kernel::read()?;
        let mode = choose_mode(options.mode, &kernel.names(), &kernel.release)?;
        let (pidns_inode, pidns_level) = PidNamespace::of_proc(&options.proc)?.inode_and_level(&kernel.btf)?;
        let mut bpf = EbpfLoader::new()
            .btf(Some(&kernel.btf))
            .override_global("pidns_inode", &pidns_inode, true)
            .override_global("pidns_level", &pidns_level, true)
            .override_global("wake_bytes", &options.wake_bytes, true)
            .override_global("report_every_exec", &u32::from(options.exec_events == ExecEvents::All), true)
            .map_max_entries("ring", ring_bytes)
            .load(OBJECT)
            .map_err(|error| {
                Error::from_loader("create the maps of the network probe".to_owned(), &error, ring_bytes)
            })?;
        // Before the maps are taken: programs refer to them by file descriptor when they are loaded.
        let programs = programs(mode, options.exec_events);
        for (program, tracepoint) in &programs {
            load_program(&mut bpf, program, tracepoint, &kernel.btf)
                .map_err(|error| Error::from_loader((*program).to_owned(), &*error, ring_bytes))?;
        }
        let loaded = forget_sockets_program(&mut bpf).and_then(|program| retry_eagain(|| program.load()));
        loaded.map_err(|error| Error::from_loader(FORGET_SOCKETS.to_owned(), &error, ring_bytes))?;
        Ok(Self { bpf, mode, programs, ring_bytes })
    }

    /// Attaches the programs and returns what owns them: dropping it detaches them.
    ///
    /// # Errors
    /// A failure of the system call.
    pub(super) fn attach(mut self) -> Result<Ebpf, Error> {
        for (program, _) in &self.programs {
            let attached = tracepoint_program(&mut self.bpf, program).and_then(|found| Ok(found.attach()?));
            attached.map_err(|error| Error::from_loader((*program).to_owned(), &*error, self.ring_bytes))?;
        }
        Ok(self.bpf)
    }
}

/// Forgets the sockets of a process. Run by test runs only.
const FORGET_SOCKETS: &str = "forget_sockets";

/// Forgets the sockets of a process, without an event for each. Takes milliseconds for a full table.
pub(super) fn forget_sockets(bpf: &mut Ebpf, pid: u32) -> Result<(), Error> {
    let mut options = RawTracePointRunOptions::new();
    options.args[0] = u64::from(pid);
    let run = forget_sockets_program(bpf).and_then(|program| program.test_run(options));
    run.map(drop).map_err(|error| Error::from_loader("forget the sockets of a process".to_owned(), &error, 0))
}

fn forget_sockets_program(bpf: &mut Ebpf) -> Result<&mut RawTracePoint, ProgramError> {
    match bpf.program_mut(FORGET_SOCKETS) {
        Some(Program::RawTracePoint(found)) => Ok(found),
        _ => Err(ProgramError::NotLoaded),
    }
}

fn tracepoint_program<'a>(bpf: &'a mut Ebpf, name: &str) -> Result<&'a mut BtfTracePoint, Box<dyn std::error::Error>> {
    match bpf.program_mut(name) {
        Some(Program::BtfTracePoint(found)) => Ok(found),
        _ => Err(format!("no program {name} in the object").into()),
    }
}

fn load_program(bpf: &mut Ebpf, name: &str, tracepoint: &str, btf: &Btf) -> Result<(), Box<dyn std::error::Error>> {
    let program = tracepoint_program(bpf, name)?;
    Ok(retry_eagain(|| program.load(tracepoint, btf))?)
}

fn choose_mode(forced: Option<CaptureMode>, names: &HashSet<&str>, release: &str) -> Result<CaptureMode, Error> {
    if forced == Some(CaptureMode::Syscall) {
        return Ok(CaptureMode::Syscall);
    }
    match kernel::SOCK_TRACEPOINTS.into_iter().find(|tracepoint| !kernel::has_tracepoint(names, tracepoint)) {
        None => Ok(CaptureMode::Sock),
        Some(tracepoint) if forced.is_some() => {
            Err(Error::NoSockTracepoints { release: release.to_owned(), tracepoint })
        }
        Some(_) => Ok(CaptureMode::Syscall),
    }
}

/// Programs to load, with their tracepoints.
fn programs(mode: CaptureMode, exec: ExecEvents) -> Vec<(&'static str, &'static str)> {
    let mut programs = match mode {
        CaptureMode::Sock => vec![("on_send", "sock_send_length"), ("on_receive", "sock_recv_length")],
        CaptureMode::Syscall => {
            vec![("on_exit", "sys_exit"), ("on_fork", "sched_process_fork"), ("on_process_exit", "sched_process_exit")]
        }
    };
    for (tracepoint, program, nested) in [
        ("inet_sock_set_state", "on_state", "on_state_nested"),
        ("tcp_destroy_sock", "on_destroy", "on_destroy_nested"),
    ] {
        programs.extend([(program, tracepoint), (nested, tracepoint)]);
    }
    if exec != ExecEvents::None {
        programs.push(("on_exec", "sched_process_exec"));
    }
    programs
}
