//! The downloads that are open, which share the memory for what is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is read and sent at once, at most and at least, in bytes.
const FRAME_MAX: usize = 128 << 10;
const FRAME_MIN: usize = 8 << 10;
/// What all downloads together read at once. Each has up to four frames in memory, also if its reader takes nothing.
const FRAMES_BYTES: usize = 8 << 20;

/// Counts the downloads that are open: the more there are, the less each of them reads at once.
#[derive(Clone, Default)]
pub struct Downloads(Arc<AtomicUsize>);

impl Downloads {
    /// Counts one more.
    pub(super) fn enter(&self) -> Download {
        self.0.fetch_add(1, Ordering::Relaxed);
        Download(self.clone())
    }
}

/// One of them, until it is dropped.
pub(super) struct Download(Downloads);

impl Download {
    /// How much it may read at once, in bytes.
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
    fn the_more_downloads_are_open_the_less_each_of_them_has_in_memory() {
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
        assert!(taken < 128 << 20, "{taken} bytes, although none of them is read");
        assert_eq!(first.frame(), FRAME_MIN);
        drop(open);
        assert_eq!(first.frame(), FRAME_MAX);
    }
}
