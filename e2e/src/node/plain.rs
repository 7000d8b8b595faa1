//! Traffic that is not Tezos: random bytes, written in pieces of random or fixed size.

use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use super::reactor::{Behaviour, Next};

/// How long pieces are.
#[derive(Debug, Clone, Copy)]
pub enum Pieces {
    /// All alike, in bytes.
    Fixed(usize),
    /// From 1 byte to this many, each order of magnitude as likely as the others.
    UpTo(usize),
}

impl Pieces {
    /// The next length.
    pub fn pick(self, random: &mut impl Rng) -> usize {
        match self {
            Self::Fixed(size) => size.max(1),
            Self::UpTo(largest) => {
                let bits = largest.max(1).ilog2();
                let bound = 1usize << random.random_range(0..=bits);
                random.random_range(1..=bound.saturating_mul(2)).min(largest).max(1)
            }
        }
    }
}

/// Sends random bytes, reads whatever comes.
pub struct Noise {
    random: StdRng,
    pieces: Pieces,
    left: u64,
}

impl Noise {
    /// Sends `bytes` in all.
    #[must_use]
    pub fn new(seed: u64, pieces: Pieces, bytes: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed), pieces, left: bytes }
    }
}

impl Behaviour for Noise {
    fn next(&mut self, _now: Instant, released: bool) -> Next {
        if self.left == 0 {
            return Next::Done;
        }
        if !released {
            return Next::Wait;
        }
        let length = self.pieces.pick(&mut self.random).min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= length as u64;
        let mut bytes = vec![0; length];
        self.random.fill_bytes(&mut bytes);
        Next::Write(bytes)
    }

    fn read_size(&mut self) -> usize {
        super::session::read_size(&mut self.random)
    }

    fn received(&mut self, _bytes: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn end_of_stream(&mut self) -> Result<bool, String> {
        Ok(self.left == 0)
    }

    fn finish(&mut self) {
        self.left = 0;
    }
}
