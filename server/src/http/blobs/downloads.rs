//! Open downloads, which share memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bounds of one read, in bytes.
const FRAME_MAX: usize = 128 << 10;
const FRAME_MIN: usize = 8 << 10;
/// Bytes of one read by all downloads. Each holds up to four frames, even if its reader stalls.
const FRAMES_BYTES: usize = 8 << 20;

/// The more open downloads, the smaller their reads.
#[derive(Clone, Default)]
pub struct Downloads(Arc<AtomicUsize>);

impl Downloads {
    pub(super) fn enter(&self) -> Download {
        self.0.fetch_add(1, Ordering::Relaxed);
        Download(self.clone())
    }
}

pub(super) struct Download(Downloads);

impl Download {
    /// Size of the next read, in bytes.
    pub(super) fn frame(&self) -> usize {
        frame_of(self.0.0.load(Ordering::Relaxed))
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn frame_of(downloads: usize) -> usize {
    (FRAMES_BYTES / downloads.max(1)).clamp(FRAME_MIN, FRAME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_size_shrinks_with_open_downloads() {
        let all = Downloads::default();
        let first = all.enter();
        assert_eq!(first.frame(), FRAME_MAX);
        let mut taken = 0;
        let open: Vec<Download> = (0..10_000)
            .map(|_| {
                let download = all.enter();
                taken += download.frame();
                download
            })
            .collect();
        assert!(taken < 128 << 20, "{taken} bytes in memory");
        assert_eq!(first.frame(), FRAME_MIN);
        drop(open);
        assert_eq!(first.frame(), FRAME_MAX);
    }
}
