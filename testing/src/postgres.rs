//! Debian's PostgreSQL, which long tests observe; `scripts/setup-soak` installs it.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command},
};

use crate::wait;

/// A server with its own database cluster, run as the user `postgres`; stopped and removed when dropped.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    folder: PathBuf,
    server: Child,
}

impl Postgres {
    /// Starts a server with these settings, each `NAME=VALUE`, and waits until it answers.
    ///
    /// # Panics
    /// If it is not installed or does not start.
    #[must_use]
    pub fn start(settings: &[&str]) -> Self {
        let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed: scripts/setup-soak");
        let newest = versions.map(|entry| entry.expect("a folder").path()).max().expect("a version");
        let programs = newest.join("bin");
        let made = as_postgres(Path::new("mktemp")).args(["-d", "/tmp/chainscope-postgres-XXXXXX"]).output();
        let folder = PathBuf::from(String::from_utf8(made.expect("mktemp").stdout).expect("a path").trim());
        output(as_postgres(&programs.join("initdb")).args(["--auth=trust", "--pgdata"]).arg(&folder));
        let server = as_postgres(&programs.join("postgres"))
            .args(["-h", "", "-c", "fsync=off", "-k"])
            .arg(&folder)
            .arg("-D")
            .arg(&folder)
            .args(settings.iter().flat_map(|setting| ["-c", setting]))
            .spawn()
            .expect("a child process");
        let postgres = Self { programs, folder, server };
        wait::until_true("the server", || postgres.client("pg_isready").status().is_ok_and(|status| status.success()));
        postgres
    }

    /// Its first process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.id()
    }

    /// The command of a client that connects to it.
    #[must_use]
    pub fn client(&self, program: &str) -> Command {
        let mut command = as_postgres(&self.programs.join(program));
        command.arg("-h").arg(&self.folder);
        command
    }

    /// What a query answers: lines of fields separated by `|`.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn query(&self, sql: &str) -> String {
        output(self.client("psql").args(["-At", "-c", sql, "postgres"]))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ =
            as_postgres(&self.programs.join("pg_ctl")).args(["stop", "-m", "fast", "-D"]).arg(&self.folder).status();
        let _ = self.server.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn as_postgres(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
    command.current_dir("/tmp");
    command
}

fn output(command: &mut Command) -> String {
    let output = command.output().expect("a child process");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
