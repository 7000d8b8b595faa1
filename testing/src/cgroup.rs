//! Control groups, as container runtimes create them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A control group that is removed when it is dropped.
#[derive(Debug)]
pub struct Group(PathBuf);

impl Group {
    /// Creates it in the first hierarchy that takes it: version 1, hybrid, or 2.
    ///
    /// # Panics
    /// If none takes it.
    #[must_use]
    pub fn create(name: &str) -> Self {
        let hierarchies = ["pids", "systemd", "freezer", "unified", ""];
        let groups = hierarchies.map(|hierarchy| Path::new("/sys/fs/cgroup").join(hierarchy)).into_iter();
        let mut groups = groups.filter(|at| at.join("cgroup.procs").exists()).map(|at| at.join(name));
        Self(groups.find(|group| fs::create_dir(group).is_ok()).expect("a hierarchy that takes a control group"))
    }

    /// The group of a container of Docker with this id.
    ///
    /// # Panics
    /// Like [`Group::create`].
    #[must_use]
    pub fn of_container(id: &str) -> Self {
        Self::create(&format!("docker-{id}.scope"))
    }

    /// A command that runs a program in the group from its first instruction on.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$1\""]).arg(&self.0).arg(program);
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The processes have exited, which the kernel may still have to notice.
        crate::wait::until_true("an empty control group", || fs::remove_dir(&self.0).is_ok());
    }
}
