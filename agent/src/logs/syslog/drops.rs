//! Datagrams that the kernel dropped because the receive buffer of a socket was full, from `/proc/net/udp`.

use std::{fs, net::SocketAddr, os::fd::AsFd};

use rustix::fs::fstat;

/// The count of one socket.
#[derive(Debug)]
pub(super) struct KernelDrops {
    path: &'static str,
    inode: Option<u64>,
    last: u64,
}

impl KernelDrops {
    pub(super) fn of(socket: &impl AsFd, address: SocketAddr) -> Self {
        // Of the network namespace that this thread is in.
        let path = if address.is_ipv4() { "/proc/thread-self/net/udp" } else { "/proc/thread-self/net/udp6" };
        Self { path, inode: fstat(socket).ok().map(|stat| stat.st_ino), last: 0 }
    }

    /// Datagrams that were dropped since the last call.
    pub(super) fn since_last(&mut self) -> u64 {
        let table = fs::read_to_string(self.path).unwrap_or_default();
        let Some(total) = self.inode.and_then(|inode| drops_of(&table, inode)) else { return 0 };
        // The kernel counts in 32 bits.
        let new = u64::from((total as u32).wrapping_sub(self.last as u32));
        self.last = total;
        new
    }
}

/// The column `drops` of the socket with this inode.
fn drops_of(table: &str, inode: u64) -> Option<u64> {
    let of = |line: &str| {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        (columns.get(9)?.parse() == Ok(inode)).then(|| columns.get(12)?.parse().ok())?
    };
    table.lines().skip(1).find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_found_by_inode() {
        let table = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n \
            1205: 0100007F:2710 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0000000000000000 17\n \
            1206: 0100007F:2711 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4712 2 0000000000000000 0\n";
        assert_eq!((drops_of(table, 4711), drops_of(table, 4712), drops_of(table, 4713)), (Some(17), Some(0), None));
    }
}
