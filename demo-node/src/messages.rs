//! Valid peer messages of every kind, seeded and random. Layout: Octez `distributed_db_message.ml`, `p2p_message.ml`.

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

/// A whole P2P message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The name of its kind in filters of the API: "operation".
    pub kind: &'static str,
    /// Length, tag and body.
    pub framed: Vec<u8>,
}

/// Lengths of messages.
#[derive(Debug, Clone, Copy)]
pub enum Sizes {
    /// Each kind's typical length: tens to hundreds of bytes.
    Natural,
    /// Only operations, of exactly this many bytes with framing; at least 39.
    Fixed(usize),
    /// Mostly natural; one in sixteen is an `operations_for_blocks` of up to this many bytes.
    Mixed(usize),
}

/// An endless source of messages.
pub struct Messages {
    random: StdRng,
    sizes: Sizes,
}

type Body = fn(&mut StdRng) -> Vec<u8>;

/// Every kind with its tag. `disconnect` is the last, since no endless conversation contains it.
pub const KINDS: [(u16, &str, Body); 27] = [
    (0x02, "bootstrap", |_| Vec::new()),
    (0x03, "advertise", |r| (0..r.random_range(1..20)).flat_map(|_| point(r)).collect()),
    (0x04, "swap_request", |r| [point(r), bytes(r, 16)].concat()),
    (0x05, "swap_ack", |r| [point(r), bytes(r, 16)].concat()),
    (0x10, "get_current_branch", chain),
    (0x11, "current_branch", |r| [chain(r), locator(r)].concat()),
    (0x12, "deactivate", chain),
    (0x13, "get_current_head", chain),
    (0x14, "current_head", |r| {
        let (known, pending) = (hashes(r, 8), hashes(r, 8));
        [chain(r), with_length(header(r)), with_length(known), with_length(with_length(pending))].concat()
    }),
    (0x20, "get_block_headers", |r| with_length(hashes(r, 10))),
    (0x21, "block_header", header),
    (0x30, "get_operations", |r| with_length(hashes(r, 10))),
    (0x31, "operation", |r| {
        let length = r.random_range(65..400);
        operation(r, length)
    }),
    (0x40, "get_protocols", |r| with_length(hashes(r, 10))),
    (0x41, "protocol", |r| {
        [vec![0, r.random_range(0..18)], with_length((0..3).flat_map(|_| component(r)).collect())].concat()
    }),
    (0x50, "get_operation_hashes_for_blocks", |r| with_length(passes(r))),
    (0x51, "operation_hashes_for_blocks", |r| [pass(r), path(r), hashes(r, 12)].concat()),
    (0x60, "get_operations_for_blocks", |r| with_length(passes(r))),
    (0x61, "operations_for_blocks", |r| operations_for_blocks(r, 2000)),
    (0x70, "get_checkpoint", chain),
    (0x71, "checkpoint", |r| [chain(r), header(r)].concat()),
    (0x80, "get_protocol_branch", |r| [chain(r), bytes(r, 1)].concat()),
    (0x81, "protocol_branch", |r| [chain(r), bytes(r, 1), locator(r)].concat()),
    (0x90, "get_predecessor_header", |r| [bytes(r, 32), number(r, 1000)].concat()),
    (0x91, "predecessor_header", |r| [bytes(r, 32), number(r, 1000), header(r)].concat()),
    // An unknown tag: recorders must keep the message.
    (0x7777, "unknown", |r| bytes(r, 40)),
    (0x01, "disconnect", |_| Vec::new()),
];

impl Messages {
    /// A source of the messages of that seed: the same for the same seed.
    #[must_use]
    pub fn new(seed: u64, sizes: Sizes) -> Self {
        Self { random: StdRng::seed_from_u64(seed), sizes }
    }
}

impl Iterator for Messages {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        let random = &mut self.random;
        let largest = match self.sizes {
            Sizes::Fixed(size) => {
                return Some(frame(0x31, "operation", operation(random, size.saturating_sub(38).max(1))));
            }
            Sizes::Mixed(largest) if random.random_ratio(1, 16) => Some(largest),
            Sizes::Mixed(_) | Sizes::Natural => None,
        };
        if let Some(largest) = largest {
            let length = random.random_range(1000..largest.max(1001));
            return Some(frame(0x61, "operations_for_blocks", operations_for_blocks(random, length)));
        }
        // Neither the unknown tag nor the disconnect: a node drops a peer for both.
        let (tag, kind, body) = KINDS.get(random.random_range(0..KINDS.len() - 2))?;
        Some(frame(*tag, kind, body(random)))
    }
}

/// A message of a kind, with length and tag in front.
#[must_use]
pub fn frame(tag: u16, kind: &'static str, body: Vec<u8>) -> Message {
    let length = u32::try_from(body.len() + 2).unwrap_or(u32::MAX);
    let mut framed = Vec::with_capacity(body.len() + 6);
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(&tag.to_be_bytes());
    framed.extend(body);
    Message { kind, framed }
}

/// A field with its 32-bit length in front.
#[must_use]
pub fn with_length(field: Vec<u8>) -> Vec<u8> {
    [u32::try_from(field.len()).unwrap_or(u32::MAX).to_be_bytes().to_vec(), field].concat()
}

fn bytes(random: &mut StdRng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill_bytes(&mut bytes);
    bytes
}

fn number(random: &mut StdRng, below: u32) -> Vec<u8> {
    random.random_range(0..below).to_be_bytes().to_vec()
}

fn hashes(random: &mut StdRng, max: usize) -> Vec<u8> {
    let count = random.random_range(1..=max);
    bytes(random, 32 * count)
}

fn chain(random: &mut StdRng) -> Vec<u8> {
    // Mainnet, mostly.
    if random.random_ratio(1, 8) { bytes(random, 4) } else { vec![0x7a, 0x06, 0xa7, 0x70] }
}

fn point(random: &mut StdRng) -> Vec<u8> {
    let port = random.random_range(1024..=u16::MAX);
    let text = if random.random_ratio(1, 4) {
        format!("[2001:db8::{:x}]:{port}", random.random::<u16>())
    } else {
        format!("198.51.100.{}:{port}", random.random::<u8>())
    };
    with_length(text.into_bytes())
}

/// A Tenderbake header.
fn header(random: &mut StdRng) -> Vec<u8> {
    let level = random.random_range(2_000_000..9_000_000u32);
    let mut header = level.to_be_bytes().to_vec();
    header.push(random.random_range(1..24));
    header.extend(bytes(random, 32));
    header.extend(random.random_range(1_500_000_000..1_900_000_000i64).to_be_bytes());
    header.push(4);
    header.extend(bytes(random, 32));
    let fitness = [vec![2], level.to_be_bytes().to_vec(), Vec::new(), (-1i32).to_be_bytes().to_vec(), vec![0; 4]];
    header.extend(with_length(fitness.into_iter().flat_map(with_length).collect()));
    header.extend(bytes(random, 32));
    header.extend(bytes(random, 32 + 4 + 8));
    header.extend([0, 10]);
    header.extend(bytes(random, 64));
    header
}

fn locator(random: &mut StdRng) -> Vec<u8> {
    [with_length(header(random)), hashes(random, 20)].concat()
}

/// Branch and `length` bytes of data, whose first byte is that of a transaction.
fn operation(random: &mut StdRng, length: usize) -> Vec<u8> {
    let mut operation = bytes(random, 32 + length);
    if let Some(kind) = operation.get_mut(32) {
        *kind = 0x6c;
    }
    operation
}

fn component(random: &mut StdRng) -> Vec<u8> {
    let interface = if random.random() { vec![0] } else { [vec![0xff], with_length(b"val x : int".to_vec())].concat() };
    [
        with_length(b"storage".to_vec()),
        interface,
        with_length(format!("let x = {}", random.random::<u16>()).into_bytes()),
    ]
    .concat()
}

fn pass(random: &mut StdRng) -> Vec<u8> {
    [bytes(random, 32), vec![random.random_range(0..4)]].concat()
}

fn passes(random: &mut StdRng) -> Vec<u8> {
    (0..random.random_range(1..=10)).flat_map(|_| pass(random)).collect()
}

fn path(random: &mut StdRng) -> Vec<u8> {
    (0..random.random_range(0..3)).fold(vec![0], |below, _| {
        let hash = bytes(random, 32);
        if random.random() { [vec![0xf0], below, hash].concat() } else { [vec![0x0f], hash, below].concat() }
    })
}

/// About `length` bytes, in operations of at most 32 KiB.
fn operations_for_blocks(random: &mut StdRng, length: usize) -> Vec<u8> {
    let mut body = [pass(random), path(random)].concat();
    while body.len() < length {
        let left = (length - body.len()).min(32 << 10);
        let data = random.random_range(1..=left.max(2));
        body.extend(with_length(operation(random, data)));
    }
    body
}
