//! The logs pillar: log messages of nodes, from files, from what their containers print, and from syslog.
//!
//! ```text
//!   inbox ── Command ──▶ reader: schedules ──▶ pool: one call of a source at a time
//!                                                 follower ── lines ──▶ assembler ── messages ─┐
//!   syslog: UDP datagrams, TCP frames ── messages ── routed to a node ─────────────────────────┤
//!                                                                                              ▼
//!                                                                      redacted ──▶ LogSink: record streams
//! ```
//!
//! **Exactly once, for files.** A message carries the position of its end in its file. An aggregator drops what ends at or
//! before the last one that it stored of the file, so the agent may read again. It must then find the same messages: their
//! boundaries follow from the file, except where a message was ended because no further line came. Such a boundary is on disk
//! before its message is sent ([`files::positions`]).
//!
//! **Waiting.** A file is not read on while its messages do not fit into the record stream. Syslog cannot wait: what does not
//! fit is counted by the stream, and what the kernel dropped is recorded as a loss.

mod emit;
mod figures;
pub(crate) mod files;
mod syslog;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, sync::Arc, thread::JoinHandle, time::Duration};

use crossbeam_channel::{Sender, unbounded};
use emit::LogSink;
use figures::Figures;
use files::{
    location::LogLocation,
    positions::Positions,
    reader::{Command, Reader, SourceSpec},
    source::SourceOptions,
};
use tokio::sync::watch;

use crate::{
    Config, Error,
    blocking::BlockingPool,
    config::ContainerLogs,
    folder::Folder,
    pillar::{Pillar, PillarStatus},
    targets::{Assignment, ContainerLocation, Inbox, TargetChange},
    thread::{AsyncThread, Heartbeat, spawn},
};

/// How long the syslog server may take to read what has arrived when the pillar ends.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// The running logs pillar.
pub(crate) struct LogsPillar {
    figures: Arc<Figures>,
    commands: Sender<Command>,
    reader: Option<JoinHandle<()>>,
    syslog: Option<(watch::Sender<bool>, AsyncThread)>,
}

impl LogsPillar {
    /// Binds the syslog servers, and follows the files of the configured nodes.
    pub(crate) fn start(config: &Config, folder: &Folder, sink: impl LogSink) -> Result<(Self, Box<dyn Inbox>), Error> {
        let pool = BlockingPool::new("chainscope-logfile", "log files");
        let reading = Heartbeat::new("log reader");
        let mut heartbeats = vec![reading.clone(), pool.heartbeat()];
        #[expect(
            clippy::disallowed_methods,
            reason = "one command per change of a target; discovery must not wait for a pillar"
        )]
        let (commands, commanded) = unbounded();
        let servers = syslog::bind(&config.nodes)?;
        let (stop, stopped) = watch::channel(false);
        let figures = Arc::<Figures>::default();
        let syslog = if servers.is_empty() {
            None
        } else {
            let (sink, figures) = (sink.clone(), Arc::clone(&figures));
            let serve = move || syslog::serve(servers, sink, figures, stopped);
            let thread = AsyncThread::spawn("chainscope-syslog", "syslog", serve)?;
            heartbeats.push(thread.heartbeat());
            Some((stop, thread))
        };
        figures.set_heartbeats(heartbeats);
        let reader =
            Reader::new(sink, Positions::load(folder.clone())?, Arc::clone(&figures), pool, commanded, reading);
        let reader = spawn("chainscope-logs", move || reader.run())?;
        for node in &config.nodes {
            let Some(logs) = &node.logs else { continue };
            if let Some(path) = &logs.sources.file {
                let node = node.name.as_str().into();
                let location = LogLocation::File(path.clone());
                let options = SourceOptions { target: "".into(), redact: logs.redact.clone() };
                let source = SourceSpec { node, location, options };
                // The reader runs until its stop command.
                let _ = commands.send(Command::Follow { pid: None, source });
            }
        }
        let inbox =
            LogsInbox { commands: commands.clone(), dirs: config.container_logs.clone(), locations: BTreeMap::new() };
        Ok((Self { figures, commands, reader: Some(reader), syslog }, Box::new(inbox)))
    }
}

impl Pillar for LogsPillar {
    fn status(&self) -> Arc<dyn PillarStatus> {
        Arc::clone(&self.figures) as Arc<dyn PillarStatus>
    }

    fn drain(&mut self) -> Result<(), Error> {
        if let Some((stop, mut thread)) = self.syslog.take() {
            stop.send_replace(true);
            thread.wait(SHUTDOWN_GRACE);
        }
        // A reader that ended has panicked; the panic hook has logged it.
        let _ = self.commands.send(Command::Stop);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        Ok(())
    }
}

impl fmt::Debug for LogsPillar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogsPillar").finish_non_exhaustive()
    }
}

/// Translates target changes into commands of the reader.
struct LogsInbox {
    commands: Sender<Command>,
    dirs: ContainerLogs,
    /// Containers of the targets, by process id.
    locations: BTreeMap<u32, ContainerLocation>,
}

impl LogsInbox {
    /// Follows the output of the process's container, if it has one and its log is recorded.
    fn follow(&self, pid: u32, assignment: &Assignment) {
        let source = self.locations.get(&pid).and_then(|location| self.source(location, assignment));
        self.send(source.map_or(Command::Released(pid), |source| Command::Follow { pid: Some(pid), source }));
    }

    fn source(&self, container: &ContainerLocation, assignment: &Assignment) -> Option<SourceSpec> {
        let Assignment { node, label, observe, .. } = assignment;
        let logs = observe.logs.as_ref()?;
        let location = match (&logs.pod_dir, &container.pod) {
            (Some(dir), _) => LogLocation::pod(&self.dirs, dir),
            (None, None) => LogLocation::docker(&self.dirs, &container.container.to_string()),
            // A pod that the operator did not name: the directory is not known.
            (None, Some(_)) => return None,
        };
        let options = SourceOptions { target: Arc::clone(label), redact: logs.redact.clone() };
        Some(SourceSpec { node: Arc::clone(node), location, options })
    }

    fn send(&self, command: Command) {
        // A reader that ended has logged the cause.
        let _ = self.commands.send(command);
    }
}

impl Inbox for LogsInbox {
    fn put(&mut self, change: &TargetChange) -> Result<(), Error> {
        match change {
            TargetChange::Started(target) => {
                let pid = target.facts.pid;
                // The number of a process whose exit was not noticed yet.
                self.send(Command::Exited(pid));
                self.locations.remove(&pid);
                if let Some(location) = &target.facts.location {
                    self.locations.insert(pid, location.clone());
                    self.follow(pid, &target.assignment);
                }
                if target.has_exited {
                    self.locations.remove(&pid);
                    self.send(Command::Exited(pid));
                }
            }
            TargetChange::Changed(pid, assignment) => self.follow(*pid, assignment),
            TargetChange::Released(pid) => {
                self.locations.remove(pid);
                self.send(Command::Released(*pid));
            }
            TargetChange::Exited(pid) => {
                self.locations.remove(pid);
                self.send(Command::Exited(*pid));
            }
            _ => {}
        }
        Ok(())
    }
}
