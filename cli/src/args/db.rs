//! Arguments of `chainscope db`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::OutputArgs;

/// Check, back up, restore or compact the database of a stopped server.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub(crate) struct DbArgs {
    /// Data directory of the server
    #[arg(long, value_name = "DIRECTORY", global = true)]
    pub(crate) data_dir: Option<PathBuf>,
    /// Configuration file, as for `run`: its data directory is used without --data-dir
    #[arg(long, short, value_name = "FILE", env = "CHAINSCOPE_CONFIG", global = true)]
    pub(crate) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: DbCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DbCommand {
    /// Read all of the database and check that it is complete and agrees with itself; exit code 1 if not
    #[command(after_help = "\
Examples:
  chainscope db check
  chainscope db check --data-dir /var/lib/chainscope
  chainscope db check -o json | jq .problem_count")]
    Check {
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Write a copy into a directory that does not exist yet
    ///
    /// On the same file system the files are linked, which takes no time and no space; such a copy does not outlive the disk.
    /// Full-text indexes are not in it: they are made again when a server opens it.
    #[command(after_help = "\
Examples:
  chainscope db backup /mnt/backup/monday
  chainscope db backup /mnt/backup/monday --data-dir /var/lib/chainscope")]
    Backup {
        /// Directory to create
        #[arg(value_name = "DIRECTORY")]
        to: PathBuf,
    },
    /// Make a database from a backup, in a data directory that has none
    #[command(after_help = "\
Examples:
  chainscope db restore /mnt/backup/monday
  chainscope db restore /mnt/backup/monday --data-dir /var/lib/chainscope")]
    Restore {
        /// Directory of the backup, which stays as it is
        #[arg(value_name = "BACKUP")]
        from: PathBuf,
    },
    /// Sort all files and give back the space of what was evicted; needs as much free space as the database takes
    ///
    /// A running server does so by itself, bit by bit.
    #[command(after_help = "\
Examples:
  chainscope db compact
  chainscope db compact --config /etc/chainscope/chainscope.toml")]
    Compact,
}

const NOTES: &str = "\
The database is the directory `db` in the data directory. Its server, `chainscope run` or an aggregator, has to be stopped. Of a
running one take an atomic snapshot of the file system (LVM, Btrfs, ZFS, a VolumeSnapshot of Kubernetes): the directory `db` in it
is a backup, with every record that was acknowledged.

Examples:
  chainscope db check
  chainscope db check -o json | jq .problem_count
  chainscope db backup /mnt/backup/monday
  chainscope db restore /mnt/backup/monday --data-dir /var/lib/chainscope
  chainscope db compact --config /etc/chainscope/chainscope.toml

Exit codes: 0 done, 1 the database is damaged or the command failed, 2 the command line is wrong or names no data directory.";
