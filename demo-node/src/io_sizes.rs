//! Random sizes of reads and writes.

use rand::Rng;

/// Sizes of writes.
#[derive(Debug, Clone, Copy)]
pub enum WriteSizes {
    /// This many bytes each.
    Fixed(usize),
    /// From 1 byte to this many, each order of magnitude as likely as the others.
    UpTo(usize),
}

impl WriteSizes {
    /// The size of the next write.
    pub fn pick(self, random: &mut impl Rng) -> usize {
        match self {
            Self::Fixed(size) => size.max(1),
            Self::UpTo(max) => {
                let bits = max.max(1).ilog2();
                let bound = 1usize << random.random_range(0..=bits);
                random.random_range(1..=bound.saturating_mul(2)).min(max).max(1)
            }
        }
    }
}

/// A random size of read(2): mostly the 16,384 bytes of Octez's ring, sometimes the 2,000 of its fresh buffers or any other.
pub fn random_read_size(random: &mut impl Rng) -> usize {
    match random.random_range(0..8) {
        0..4 => 16_384,
        4..6 => 2000,
        6 => random.random_range(1..100),
        _ => random.random_range(1..65_536),
    }
}
