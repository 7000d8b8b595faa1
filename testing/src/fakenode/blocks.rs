//! Payloads of the messages of Bitcoin and Tapyrus that announce and deliver blocks.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// A block whose transactions have one input and one output each; the first is the coinbase.
#[derive(Clone, Debug)]
pub struct Block {
    /// The bytes that are hashed; of Bitcoin 80.
    pub header: Vec<u8>,
    /// Serialized transactions.
    pub transactions: Vec<Vec<u8>>,
}

impl Block {
    /// Makes a block; `seed` distinguishes blocks of equal height.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn new(previous: [u8; 32], height: u32, transactions: usize, seed: u32) -> Self {
        let transactions: Vec<Vec<u8>> = (0..transactions.max(1))
            .map(|index| transaction(height, seed, u32::try_from(index).expect("few")))
            .collect();
        let ids = transactions.iter().map(|transaction| double_sha256(transaction)).collect();
        let header = [
            &0x2000_0000_u32.to_le_bytes()[..],
            &previous,
            &merkle_root(ids),
            &(1_700_000_000 + height).to_le_bytes(),
            &0x207f_ffff_u32.to_le_bytes(),
            &seed.to_le_bytes(),
        ]
        .concat();
        Self { header, transactions }
    }

    /// Makes a block of Tapyrus: its header has another hash, the type of an extra field and its value, and a signature.
    #[must_use]
    pub fn of_tapyrus(previous: [u8; 32], height: u32, extra_field: &[u8], seed: u32) -> Self {
        let bitcoin = Self::new(previous, height, 2, seed);
        let merkle_root = &bitcoin.header[36..68];
        let header = [
            &1_u32.to_le_bytes()[..],
            &previous,
            merkle_root,
            &double_sha256(merkle_root),
            &(1_700_000_000 + height).to_le_bytes(),
            extra_field,
            &[64],
            &[0x5a; 64],
        ]
        .concat();
        Self { header, ..bitcoin }
    }

    /// Hash in the order of the wire.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        double_sha256(&self.header)
    }

    /// Hash as it is displayed.
    #[must_use]
    pub fn id(&self) -> String {
        self.hash().iter().rev().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// `block`
    #[must_use]
    pub fn block(&self) -> Vec<u8> {
        [&self.header[..], &compact_size(self.transactions.len()), &self.transactions.concat()].concat()
    }

    /// `inv` of this block.
    #[must_use]
    pub fn inv(&self) -> Vec<u8> {
        [&[1][..], &2_u32.to_le_bytes(), &self.hash()].concat()
    }

    /// `getdata` of this block with witnesses.
    #[must_use]
    pub fn getdata(&self) -> Vec<u8> {
        [&[1][..], &0x4000_0002_u32.to_le_bytes(), &self.hash()].concat()
    }

    /// `headers` with this one.
    #[must_use]
    pub fn headers(&self) -> Vec<u8> {
        [&[1][..], &self.header, &[0]].concat()
    }

    /// `cmpctblock` with the coinbase, and the other transactions by (arbitrary) short ids.
    #[must_use]
    pub fn cmpctblock(&self) -> Vec<u8> {
        let others = self.transactions.len() - 1;
        let short_ids: Vec<u8> =
            self.transactions.iter().skip(1).flat_map(|one| double_sha256(one).into_iter().take(6)).collect();
        let nonce = 7_u64.to_le_bytes();
        [&self.header[..], &nonce, &compact_size(others), &short_ids, &[1, 0], &self.transactions[0]].concat()
    }

    /// `getblocktxn` of all transactions but the coinbase.
    #[must_use]
    pub fn getblocktxn(&self) -> Vec<u8> {
        let others = self.transactions.len() - 1;
        // Indexes are differences, less one: the first is 1, each other one is 0 after the one before.
        let indexes: Vec<u8> = (0..others).map(|index| u8::from(index == 0)).collect();
        [&self.hash()[..], &compact_size(others), &indexes].concat()
    }

    /// `blocktxn` with all transactions but the coinbase.
    #[must_use]
    pub fn blocktxn(&self) -> Vec<u8> {
        let others = &self.transactions[1..];
        [&self.hash()[..], &compact_size(others.len()), &others.concat()].concat()
    }
}

/// A payload as a setting of the command `fire`.
#[must_use]
pub fn setting(payload: &[u8]) -> String {
    payload.iter().fold("payload=hex:".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn transaction(height: u32, seed: u32, index: u32) -> Vec<u8> {
    let is_coinbase = index == 0;
    let spent =
        if is_coinbase { [0; 32] } else { double_sha256(&[height, seed, index].map(u32::to_le_bytes).concat()) };
    let output: u32 = if is_coinbase { u32::MAX } else { 0 };
    // Pushes the height, as coinbases do; a script that always succeeds.
    let script = [&[4_u8][..], &height.to_le_bytes(), &[4], &seed.to_le_bytes()].concat();
    [
        &2_u32.to_le_bytes()[..],
        &[1],
        &spent,
        &output.to_le_bytes(),
        &compact_size(script.len()),
        &script,
        &u32::MAX.to_le_bytes(),
        &[1],
        &5_000_000_000_u64.to_le_bytes(),
        &[1, 0x51],
        &0_u32.to_le_bytes(),
    ]
    .concat()
}

fn merkle_root(mut level: Vec<[u8; 32]>) -> [u8; 32] {
    while level.len() > 1 {
        level = level.chunks(2).map(|pair| double_sha256(&[pair[0], pair[pair.len() - 1]].concat())).collect();
    }
    level[0]
}

fn double_sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(Sha256::digest(bytes)).into()
}

fn compact_size(number: usize) -> Vec<u8> {
    match u8::try_from(number) {
        Ok(byte) if byte < 0xfd => vec![byte],
        _ => {
            let number = u32::try_from(number).expect("less than 2^32");
            match u16::try_from(number) {
                Ok(number) => [&[0xfd][..], &number.to_le_bytes()].concat(),
                Err(_) => [&[0xfe][..], &number.to_le_bytes()].concat(),
            }
        }
    }
}
