//! BPF arrays mapped into this process (`BPF_F_MMAPABLE`): elements are read and written without a system call for each.
//!
//! Minimum kernel: 5.5.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use aya::Pod;
use aya::maps::{InnerMap, MapData};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapped BPF array. Elements are multiples of 8 bytes, like the stride of the array in the kernel.
pub(crate) struct MmapArray<T> {
    start: NonNull<u8>,
    bytes: usize,
    length: u32,
    element: PhantomData<T>,
}

// SAFETY: plain shared memory, valid in every thread; all access goes through raw pointers, volatile or atomic.
unsafe impl<T: Send> Send for MmapArray<T> {}

impl<T> fmt::Debug for MmapArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedArray").field("length", &self.length).finish_non_exhaustive()
    }
}

impl<T: Pod> MmapArray<T> {
    const SIZE_IS_VALID: () = assert!(size_of::<T>().is_multiple_of(8));

    /// Maps `length` elements.
    pub(crate) fn new(map: BorrowedFd<'_>, length: u32) -> io::Result<Self> {
        let () = Self::SIZE_IS_VALID;
        let bytes = (length as usize * size_of::<T>()).next_multiple_of(rustix::param::page_size());
        // SAFETY: a new mapping at an address chosen by the kernel aliases no Rust object.
        let start =
            unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, map, 0)? };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { start, bytes, length, element: PhantomData })
    }

    /// Maps an array of the loaded object.
    pub(crate) fn of(map: &MapData, length: u32) -> io::Result<Self> {
        Self::new(map.fd().as_fd(), length)
    }

    /// Maps an inner map.
    pub(crate) fn of_inner<M: InnerMap>(map: &M, length: u32) -> io::Result<Self> {
        Self::new(map.fd().as_fd(), length)
    }

    pub(crate) fn length(&self) -> u32 {
        self.length
    }

    fn at(&self, index: u32) -> Option<*mut T> {
        // SAFETY: below `length` it is within the mapping, whose start is page-aligned.
        (index < self.length).then(|| unsafe { self.start.cast::<T>().add(index as usize).as_ptr() })
    }

    /// Reads an element. Not atomic: fields that a program is writing may be inconsistent.
    pub(crate) fn get(&self, index: u32) -> Option<T> {
        // SAFETY: within the mapping and aligned; any bit pattern is a `T`.
        self.at(index).map(|at| unsafe { at.read_volatile() })
    }

    /// Writes an element. Not atomic.
    pub(crate) fn set(&self, index: u32, value: T) {
        if let Some(at) = self.at(index) {
            // SAFETY: within the mapping and aligned.
            unsafe { at.write_volatile(value) };
        }
    }

    /// The 32-bit integer at `offset` of an element, which the programs may change as well.
    pub(crate) fn atomic(&self, index: u32, offset: usize) -> Option<&AtomicU32> {
        if !offset.is_multiple_of(4) || offset + 4 > size_of::<T>() {
            return None;
        }
        // SAFETY: within an element and aligned to 4; the kernel changes it atomically; it lives as long as `self`.
        self.at(index).map(|at| unsafe { AtomicU32::from_ptr(at.byte_add(offset).cast()) })
    }

    /// Allocates the next id from a counter that the programs use as well.
    pub(crate) fn fetch_next(&self, index: u32, offset: usize) -> u32 {
        self.atomic(index, offset).map_or(0, |counter| counter.fetch_add(1, Ordering::AcqRel) + 1)
    }
}

impl<T> Drop for MmapArray<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to `self`, and all borrows from it are borrows from `self`.
        // munmap fails only for invalid arguments; there is nothing to recover.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
