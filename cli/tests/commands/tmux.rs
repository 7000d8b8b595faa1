//! A terminal: a server of tmux with one window.

use std::{path::PathBuf, process::Command};

use chainscope_testing::wait;
use tempfile::TempDir;

pub(crate) struct Terminal {
    directory: TempDir,
}

impl Terminal {
    /// A terminal of this size that runs a command of the shell.
    pub(crate) fn start(columns: u16, lines: u16, command: &str) -> Self {
        let terminal = Self { directory: tempfile::tempdir().expect("a directory") };
        let (columns, lines) = (columns.to_string(), lines.to_string());
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", &columns, "-y", &lines, command]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux")
            .arg("-S")
            .arg(self.directory.path().join("socket"))
            .args(arguments)
            .env("LC_ALL", "C.UTF-8")
            .env_remove("TMUX")
            .env_remove("NO_COLOR")
            .output()
            .expect("tmux starts: run `make setup`");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Presses keys, by the names that tmux has for them.
    pub(crate) fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    pub(crate) fn resize(&self, columns: u16, lines: u16) {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &lines.to_string()]);
    }

    /// The lines on the screen.
    pub(crate) fn screen(&self) -> Vec<String> {
        self.tmux(&["capture-pane", "-p"]).lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// The screen with the control sequences of its colours.
    pub(crate) fn coloured_screen(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-e"])
    }

    /// Waits until the screen is so, and returns it. It is captured twice: tmux may have read a part of it only.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, is_so: impl Fn(&[String]) -> bool) -> Vec<String> {
        let mut screen = Vec::new();
        let holds = wait::holds_within_timeout(|| {
            let before = std::mem::replace(&mut screen, self.screen());
            is_so(&screen) && screen == before
        });
        assert!(holds, "{what}: {screen:#?}");
        screen
    }

    /// Waits until the screen has a line with this text.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) -> Vec<String> {
        self.wait(text, |screen| screen.iter().any(|line| line.contains(text)))
    }

    /// A file of this terminal's own.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The server may have ended with its window.
        let _ = Command::new("tmux").arg("-S").arg(self.directory.path().join("socket")).arg("kill-server").output();
    }
}
