//! Random valid messages of every tag, from a seed: traffic for demo nodes, load tests and property tests.
//!
//! Reproducible; the xorshift generator is not cryptographic.
use crate::{
    message::{PEER_KINDS, parts::MAX_DEPTH},
    seal::frame,
};

/// Generator of random valid messages.
#[derive(Clone, Debug)]
pub struct Generator {
    state: u64,
}

impl Generator {
    /// A generator whose messages are determined by the seed.
    pub fn new(seed: u64) -> Self {
        // Xorshift requires a state other than zero.
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    /// The next random number (Marsaglia's xorshift64*).
    pub fn number(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A random number less than `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.number() >> 16).unwrap_or(0).checked_rem(bound).unwrap_or(0)
    }

    /// `count` random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend_from_slice(&self.number().to_be_bytes());
        }
        bytes.truncate(count);
        bytes
    }

    /// A random known tag.
    pub fn tag(&mut self) -> u16 {
        let at = self.below(PEER_KINDS.len());
        PEER_KINDS.get(at).map_or(0x02, |(tag, _)| *tag)
    }

    /// A message of this tag, frame included. The body of an unknown tag is random bytes.
    pub fn message(&mut self, tag: u16) -> Vec<u8> {
        let body = self.body(tag);
        frame(tag, &body)
    }

    /// An Operation message of `length` bytes, frame included (at least 38).
    pub fn operation(&mut self, length: usize) -> Vec<u8> {
        let body = self.bytes(length.max(38) - 6);
        frame(0x31, &body)
    }

    /// The body of a message of this tag.
    pub fn body(&mut self, tag: u16) -> Vec<u8> {
        match tag {
            0x01 | 0x02 => Vec::new(),
            0x03 => self.list(8, |it| dynamic(it.point())),
            0x04 | 0x05 => join([dynamic(self.point()), self.bytes(16)]),
            0x10 | 0x12 | 0x13 | 0x70 => self.bytes(4),
            0x11 => join([self.bytes(4), self.locator()]),
            0x14 => {
                let hashes = [(); 2].map(|()| dynamic(self.list(40, |it| it.bytes(32))));
                let [known_valid, pending] = hashes;
                join([self.bytes(4), dynamic(self.header()), known_valid, dynamic(pending)])
            }
            0x20 | 0x30 | 0x40 => dynamic(self.list(10, |it| it.bytes(32))),
            0x21 => self.header(),
            0x31 => self.an_operation(),
            0x41 => {
                let components = self.list(4, |it| {
                    let interface = if it.below(2) == 0 { vec![0] } else { join([vec![0xff], it.text()]) };
                    join([it.text(), interface, it.text()])
                });
                join([vec![0, 15], dynamic(components)])
            }
            0x50 | 0x60 => dynamic(self.list(10, |it| it.bytes(33))),
            0x51 => join([self.bytes(33), self.path(), self.list(20, |it| it.bytes(32))]),
            0x61 => join([self.bytes(33), self.path(), self.list(20, |it| dynamic(it.an_operation()))]),
            0x71 => join([self.bytes(4), self.header()]),
            0x80 => self.bytes(5),
            0x81 => join([self.bytes(5), self.locator()]),
            0x90 => self.bytes(36),
            0x91 => join([self.bytes(36), self.header()]),
            _ => {
                let count = self.below(200);
                self.bytes(count)
            }
        }
    }

    fn list(&mut self, max: usize, mut item: impl FnMut(&mut Self) -> Vec<u8>) -> Vec<u8> {
        (0..self.below(max + 1)).flat_map(|_| item(self)).collect()
    }

    fn point(&mut self) -> Vec<u8> {
        let [a, b, c, d, ..] = self.number().to_be_bytes();
        if a < 0x40 { format!("[2001:db8::{b:x}:{c:x}]:9732") } else { format!("{a}.{b}.{c}.{d}:9732") }.into_bytes()
    }

    fn text(&mut self) -> Vec<u8> {
        let words = self.below(30);
        dynamic("let x = \"é\"\n".repeat(words).into_bytes())
    }

    fn header(&mut self) -> Vec<u8> {
        // Before the year 10000, so that the time is displayed as RFC 3339.
        let timestamp = 1_600_000_000 + (self.number() >> 34);
        let fitness = self.list(5, |it| {
            let count = it.below(9);
            dynamic(it.bytes(count))
        });
        let protocol_data = 64 + self.below(150);
        join([
            self.bytes(37),
            timestamp.to_be_bytes().to_vec(),
            self.bytes(33),
            dynamic(fitness),
            self.bytes(32),
            self.bytes(protocol_data),
        ])
    }

    fn locator(&mut self) -> Vec<u8> {
        join([dynamic(self.header()), self.list(30, |it| it.bytes(32))])
    }

    fn an_operation(&mut self) -> Vec<u8> {
        let data = 64 + self.below(300);
        join([self.bytes(32), self.bytes(data)])
    }

    fn path(&mut self) -> Vec<u8> {
        let mut path = vec![0];
        for _ in 0..self.below(4.min(MAX_DEPTH)) {
            let hash = self.bytes(32);
            path = if self.below(2) == 0 { join([vec![0xf0], path, hash]) } else { join([vec![0x0f], hash, path]) };
        }
        path
    }
}

fn dynamic(bytes: Vec<u8>) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    join([length.to_be_bytes().to_vec(), bytes])
}

fn join<const N: usize>(parts: [Vec<u8>; N]) -> Vec<u8> {
    parts.concat()
}
