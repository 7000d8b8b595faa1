//! Parses records of the ring (`network.h`) into events. Lengths are checked although the programs wrote the records:
//! parsing neither panics nor reads beyond a record.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::event::{Closed, ClosedBy, Data, DataHeader, Direction, Event, MissingReason, Opened, Role, SocketId};

/// `struct data_header`.
const DATA_HEADER: usize = 40;
/// `struct notice`.
pub(crate) const NOTICE: usize = 96;

const CALL_START: u8 = 1;
const SOCKET_CALL: u8 = 2;
const AF_INET6: u16 = 10;

/// The event of a record; `None` if the record is invalid or of an unknown kind.
pub(crate) fn parse(record: &[u8]) -> Option<Event<'_>> {
    match record.first()? {
        1 => data(record).map(Event::Data),
        _ => notice(record),
    }
}

fn data(record: &[u8]) -> Option<Data<'_>> {
    let length = usize::try_from(u32_at(record, 4)?).ok()?;
    // Large pieces are reserved in fixed sizes, so the record may be longer than its payload.
    let bytes = record.get(DATA_HEADER..DATA_HEADER.checked_add(length)?)?;
    let flags = *record.get(2)?;
    let reason = *record.get(3)?;
    let missing = MissingReason::from_kernel(reason);
    if missing.is_none() && reason != 0 {
        return None;
    }
    let header = DataHeader {
        socket: SocketId(u64_at(record, 8)?),
        direction: match record.get(1)? {
            0 => Direction::Sent,
            1 => Direction::Received,
            _ => return None,
        },
        offset: u64_at(record, 16)?,
        covers: u64_at(record, 24)?,
        missing,
        call_start: flags & CALL_START != 0,
        socket_call: flags & SOCKET_CALL != 0,
        time_ns: u64_at(record, 32)?,
    };
    Some(Data { header, bytes })
}

/// Parses a record that is not data: all of them are a `struct notice`.
pub(crate) fn notice(record: &[u8]) -> Option<Event<'static>> {
    let pid = u32_at(record, 4)?;
    let socket = SocketId(u64_at(record, 8)?);
    let time_ns = u64_at(record, 16)?;
    let inode = u64_at(record, 24)?;
    let sent_offset = u64_at(record, 32)?;
    let received_offset = u64_at(record, 40)?;
    let netns = u32_at(record, 48)?;
    let port = u16_at(record, 52)?;
    Some(match record.first()? {
        2 => {
            let local = address(u16_at(record, 56)?, record.get(64..80)?, port)?;
            Event::Listening { pid, netns, local: SocketAddr::new(local.ip().to_canonical(), port), time_ns }
        }
        3 => Event::Exec { pid, time_ns },
        4 => {
            let family = u16_at(record, 56)?;
            Event::Opened(Opened {
                socket,
                pid,
                netns,
                inode,
                local: address(family, record.get(64..80)?, port)?,
                remote: address(family, record.get(80..96)?, u16_at(record, 54)?)?,
                role: match record.get(1)? {
                    1 => Some(Role::Initiator),
                    2 => Some(Role::Responder),
                    _ => None,
                },
                sent_offset,
                received_offset,
                time_ns,
            })
        }
        5 => Event::Inode { socket, inode },
        6 => Event::Closed(Closed {
            socket,
            by: match record.get(2)? {
                1 => ClosedBy::Local,
                2 => ClosedBy::Remote,
                3 => ClosedBy::Reset,
                _ => ClosedBy::Unknown,
            },
            sent_offset,
            received_offset,
            time_ns,
        }),
        _ => return None,
    })
}

fn address(family: u16, bytes: &[u8], port: u16) -> Option<SocketAddr> {
    let ip = if family == AF_INET6 {
        IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?))
    } else {
        IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(..4)?).ok()?))
    };
    Some(SocketAddr::new(ip, port))
}

fn u16_at(record: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(record.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(record: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(record: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(record.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests;
