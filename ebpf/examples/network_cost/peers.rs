//! The processes of a measurement: this program, with another first argument.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use rustix::time::{ClockId, clock_gettime};

/// Starts this program with other arguments.
pub(crate) fn role(arguments: &[&str]) -> Child {
    let own = std::env::current_exe().expect("the executable path");
    Command::new(own).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("own program")
}

/// Reads a line that it prints.
pub(crate) fn line_of(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a line");
    line.trim().to_owned()
}

/// Listens on a port, which it prints, and reads whatever arrives on a number of connections.
pub(crate) fn receive(arguments: &[String]) {
    let connections: usize = arguments[2].parse().expect("a number of connections");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    println!("{}", listener.local_addr().expect("an address"));
    let readers: Vec<_> = (0..connections)
        .map(|_| {
            let (mut stream, _) = listener.accept().expect("the sender");
            std::thread::spawn(move || {
                let mut bytes = vec![0; 256 << 10];
                while stream.read(&mut bytes).is_ok_and(|n| n > 0) {}
            })
        })
        .collect();
    for reader in readers {
        reader.join().expect("a reader");
    }
}

/// CPU time of this thread, ns.
pub(crate) fn thread_cpu_time() -> f64 {
    cpu_time(ClockId::ThreadCPUTime)
}

/// CPU time of this process, ns.
pub(crate) fn process_cpu_time() -> f64 {
    cpu_time(ClockId::ProcessCPUTime)
}

fn cpu_time(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
