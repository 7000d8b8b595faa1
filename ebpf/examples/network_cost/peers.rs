//! The processes of a measurement: this program, with another first argument.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

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

/// Listens on a port, which it prints, and reads whatever arrives on one connection.
pub(crate) fn receive() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    println!("{}", listener.local_addr().expect("an address"));
    let (mut stream, _) = listener.accept().expect("the sender");
    let mut bytes = vec![0; 256 << 10];
    while stream.read(&mut bytes).is_ok_and(|n| n > 0) {}
}
