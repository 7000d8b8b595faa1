//! What a node keeps in memory, by subsystem: a cache of blocks, a mempool, and a store of blocks on disk that is read through the page
//! cache. Each grows with the messages that arrive, up to a limit, in functions of their own name: the memory view shows them as
//! callers. Contents are not interpreted.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{Advice, fadvise};

/// Bytes of a block in cache and store.
const BLOCK: usize = 128 << 10;
/// Blocks of the store: what its reads hold in the page cache in the end.
const STORED_BLOCKS: u64 = 64;
/// Blocks that the cache keeps.
const MAX_CACHED_BLOCKS: usize = 128;
/// Bytes that an operation takes with its indexes.
const OPERATION: usize = 16 << 10;
/// Operations that the mempool keeps.
const MAX_OPERATIONS: usize = 512;

/// The subsystems of a node.
#[derive(Debug)]
pub struct Subsystems {
    cache: BlockCache,
    mempool: Mempool,
    store: BlockStore,
}

impl Subsystems {
    /// Creates the store in a file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn create(store: &Path) -> io::Result<Self> {
        Ok(Self { cache: BlockCache::default(), mempool: Mempool::default(), store: BlockStore::create(store)? })
    }

    /// Handles a message: operations go to the mempool; others are validated against a block of the store.
    ///
    /// # Errors
    /// If the store cannot be read.
    #[inline(never)]
    pub fn handle_message(&mut self, kind: &str, message: &[u8]) -> io::Result<()> {
        self.mempool.add_operation(message);
        if kind != "operation" {
            let block = self.store.read_block()?;
            self.cache.insert_block(block);
        }
        Ok(())
    }
}

/// The blocks that were read last.
#[derive(Debug, Default)]
struct BlockCache {
    blocks: VecDeque<Vec<u8>>,
}

impl BlockCache {
    #[inline(never)]
    fn insert_block(&mut self, block: &[u8]) {
        if self.blocks.len() >= MAX_CACHED_BLOCKS {
            self.blocks.pop_front();
        }
        self.blocks.push_back(block.to_vec());
    }
}

/// Operations that are not in a block yet.
#[derive(Debug, Default)]
struct Mempool {
    operations: VecDeque<Vec<u8>>,
}

impl Mempool {
    #[inline(never)]
    fn add_operation(&mut self, message: &[u8]) {
        if self.operations.len() >= MAX_OPERATIONS {
            self.operations.pop_front();
        }
        // Filled, so that it is resident.
        let mut operation = vec![0xff; OPERATION];
        for (to, from) in operation.iter_mut().zip(message) {
            *to = *from;
        }
        self.operations.push_back(operation);
    }
}

/// A file of blocks.
#[derive(Debug)]
struct BlockStore {
    file: File,
    next: u64,
    buffer: Vec<u8>,
}

impl BlockStore {
    fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        let block: Vec<u8> = (0..=u8::MAX).cycle().take(BLOCK).collect();
        for number in 0..STORED_BLOCKS {
            file.write_all_at(&block, number * BLOCK as u64)?;
        }
        // Written pages stay in the page cache, and would not be read from the disk.
        file.sync_data()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        Ok(Self { file, next: 0, buffer: vec![0; BLOCK] })
    }

    /// Reads the next block, after the last one the first again.
    #[inline(never)]
    fn read_block(&mut self) -> io::Result<&[u8]> {
        self.file.read_exact_at(&mut self.buffer, self.next * BLOCK as u64)?;
        self.next = (self.next + 1) % STORED_BLOCKS;
        Ok(&self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subsystem_grows_up_to_its_limit() {
        let path = std::env::temp_dir().join(format!("chainscope-subsystems-{}", std::process::id()));
        let mut subsystems = Subsystems::create(&path).unwrap();
        subsystems.handle_message("operation", b"an operation").unwrap();
        assert_eq!((subsystems.mempool.operations.len(), subsystems.cache.blocks.len()), (1, 0));
        for _ in 0..2 * MAX_OPERATIONS {
            subsystems.handle_message("current_head", b"a head").unwrap();
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(subsystems.mempool.operations.len(), MAX_OPERATIONS);
        assert_eq!(subsystems.cache.blocks.len(), MAX_CACHED_BLOCKS);
        // The content of the store, not of a hole.
        assert!(subsystems.cache.blocks.iter().all(|block| block.len() == BLOCK && block[255] == 255));
        assert!(subsystems.mempool.operations.iter().all(|operation| operation.starts_with(b"a head")));
    }

    #[test]
    fn a_store_that_cannot_be_created_is_an_error() {
        assert!(Subsystems::create(Path::new("/nonexistent/store")).is_err());
    }
}
