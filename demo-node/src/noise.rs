//! Traffic that is not Tezos: random bytes in writes of random or fixed size.

use std::time::Instant;

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

use crate::behaviour::{Behaviour, Next};
use crate::io_sizes::{WriteSizes, random_read_size};

/// Sends random bytes; reads and ignores the peer's.
pub struct Noise {
    random: StdRng,
    sizes: WriteSizes,
    bytes_left: u64,
}

impl Noise {
    /// Sends `bytes` bytes in all.
    #[must_use]
    pub fn new(seed: u64, sizes: WriteSizes, bytes: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed), sizes, bytes_left: bytes }
    }
}

impl Behaviour for Noise {
    fn next(&mut self, _now: Instant, released: bool) -> Next {
        if self.bytes_left == 0 {
            return Next::Done;
        }
        if !released {
            return Next::Wait;
        }
        let length = self.sizes.pick(&mut self.random).min(usize::try_from(self.bytes_left).unwrap_or(usize::MAX));
        self.bytes_left -= length as u64;
        let mut bytes = vec![0; length];
        self.random.fill_bytes(&mut bytes);
        Next::Write(bytes)
    }

    fn read_size(&mut self) -> usize {
        random_read_size(&mut self.random)
    }

    fn received(&mut self, _bytes: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn end_of_stream(&mut self) -> Result<bool, String> {
        Ok(self.bytes_left == 0)
    }

    fn finish(&mut self) {
        self.bytes_left = 0;
    }
}
