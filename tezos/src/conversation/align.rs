//! Alignment of a captured piece with the bytes of its stream that were processed before.
use crate::input::Piece;

/// A piece of a stream, split into repeated, missing and new bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AlignedPiece<'a> {
    /// Leading bytes of the piece that an earlier piece covered.
    pub(super) repeated: u64,
    /// Bytes missing between the earlier pieces and the new bytes.
    pub(super) missing_before: u64,
    /// Offset of the new bytes.
    pub(super) offset: u64,
    /// New bytes.
    pub(super) bytes: &'a [u8],
    /// Bytes missing after the new bytes.
    pub(super) missing_after: u64,
    /// Offset after everything that this piece and the earlier ones cover.
    pub(super) end: u64,
}

/// Aligns a piece with the offset of its stream's next byte (`None` for the first piece of a stream).
pub(super) fn align<'a>(piece: &Piece<'a>, next_offset: Option<u64>) -> AlignedPiece<'a> {
    let next_offset = next_offset.unwrap_or(piece.offset);
    let repeated = next_offset.saturating_sub(piece.offset).min(piece.bytes.len() as u64);
    let missing_at_end = piece.covers.saturating_sub(piece.bytes.len() as u64);
    let already_covered = next_offset.saturating_sub(piece.captured_end());
    AlignedPiece {
        repeated,
        missing_before: piece.offset.saturating_sub(next_offset),
        offset: piece.offset.saturating_add(repeated),
        bytes: usize::try_from(repeated).ok().and_then(|repeated| piece.bytes.get(repeated..)).unwrap_or_default(),
        missing_after: missing_at_end.saturating_sub(already_covered),
        end: piece.captured_end().saturating_add(missing_at_end).max(next_offset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Direction;

    fn aligned(offset: u64, bytes: &[u8], covers: u64, next_offset: Option<u64>) -> AlignedPiece<'_> {
        let piece = Piece { direction: Direction::Sent, offset, bytes, covers, call_start: true, time_ns: 1 };
        align(&piece, next_offset)
    }

    #[test]
    fn a_piece_splits_into_repeated_missing_and_new_bytes() {
        let whole =
            AlignedPiece { repeated: 0, missing_before: 0, offset: 10, bytes: b"abcd", missing_after: 0, end: 14 };
        assert_eq!(aligned(10, b"abcd", 4, None), whole);
        assert_eq!(aligned(10, b"abcd", 4, Some(10)), whole);
        assert_eq!(aligned(10, b"abcd", 4, Some(7)), AlignedPiece { missing_before: 3, ..whole });
        assert_eq!(aligned(10, b"abcd", 6, Some(10)), AlignedPiece { missing_after: 2, end: 16, ..whole });
        let repeated = AlignedPiece { repeated: 3, offset: 13, bytes: b"d", ..whole };
        assert_eq!(aligned(10, b"abcd", 4, Some(13)), repeated);
    }

    #[test]
    fn a_repeated_piece_has_no_new_bytes_and_counts_no_loss_twice() {
        let repeated =
            AlignedPiece { repeated: 4, missing_before: 0, offset: 14, bytes: b"", missing_after: 0, end: 20 };
        assert_eq!(aligned(10, b"abcd", 4, Some(20)), repeated);
        assert_eq!(aligned(10, b"abcd", 9, Some(20)), repeated);
        assert_eq!(aligned(10, b"abcd", 12, Some(20)), AlignedPiece { missing_after: 2, end: 22, ..repeated });
        let without_bytes = AlignedPiece { repeated: 0, offset: 10, missing_after: 2, end: 22, ..repeated };
        assert_eq!(aligned(10, b"", 12, Some(20)), without_bytes);
    }
}
