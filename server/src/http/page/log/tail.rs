//! The last lines of a log, for the task's page.

use std::io::Read as _;

use flate2::read::MultiGzDecoder;
use maud::{Markup, html};
use tenure_api::live_log::{BACKING_LOG, LIVE_LOG};
use tokio::io::AsyncReadExt as _;

use crate::http::api::artifacts::reading::scopes_to_read;
use crate::http::budget::Share;
use crate::http::heavy::Heavy;
use crate::http::page::error::PageError;
use crate::http::page::layout::section;
use crate::http::page::state::Site;
use crate::http::page::text::plain;
use crate::http::page::visit::Visit;
use tenure_domain::live_log::Cursor;
use tenure_domain::terminal::Terminal;
use tenure_engine::blobs::{BlobError, BlobName, Generation};
use tenure_engine::ops::create_artifact::RunRef;
use tenure_store::live_logs::{self, Position};

const LINES_MAX: usize = 50;
const TAIL_BYTES: u64 = 16 << 10;
/// A larger compressed log is skipped: it must be read from its beginning.
const PACKED_MAX: u64 = 1 << 20;
const UNPACKED_MAX: u64 = 64 << 20;

pub(in crate::http::page) struct Tail {
    of: RunRef,
    /// None if the log is too large.
    lines: Option<String>,
}

impl Tail {
    pub(in crate::http::page) fn into_lines(self) -> Option<String> {
        self.lines
    }
}

/// Reads the end of a complete or growing log. None if there is no log.
pub(in crate::http::page) async fn tail(app: &Site, visit: &Visit, of: RunRef) -> Result<Option<Tail>, PageError> {
    if !visit.may(scopes_to_read(LIVE_LOG)) {
        return Ok(None);
    }
    if visit.may(scopes_to_read(BACKING_LOG)) {
        let blob = BlobName::artifact(of.task, of.run, BACKING_LOG);
        if let Some(stored) = app.engine.blobs.current(&app.engine.pool, &blob).await? {
            let lines = match read_stored(app, visit.share(), &stored).await {
                Ok(lines) => lines,
                Err(error) => {
                    tracing::debug!(error = %error, task.id = %of.task, "the end of a log could not be read");
                    None
                }
            };
            return Ok(Some(Tail { of, lines }));
        }
    }
    let mut conn = app.engine.pool.acquire().await?;
    let found = live_logs::find(&mut conn, of.task, of.run).await?;
    let Some((seq, end)) = found.and_then(|found| Some((found.seq, found.next?))) else { return Ok(None) };
    let begin = end.unsigned_abs().saturating_sub(TAIL_BYTES);
    let position = Position { seq, run: of.run.number().cast_signed(), next: i64::try_from(begin).unwrap_or(i64::MAX) };
    // Each chunk has at least one byte.
    let pieces = live_logs::read(&mut conn, &[position], TAIL_BYTES.cast_signed()).await?;
    drop(conn);
    let (mut cursor, mut bytes) = (Cursor { next: begin }, Vec::new());
    for piece in &pieces {
        let (line, new) = cursor.take(piece.start.unsigned_abs(), &piece.bytes);
        bytes.extend(line.into_iter().flat_map(String::into_bytes));
        bytes.extend_from_slice(new);
    }
    Ok(Some(Tail { of, lines: Some(last_lines(&bytes, begin == 0)) }))
}

async fn read_stored(app: &Site, share: Share, stored: &Generation) -> Result<Option<String>, BlobError> {
    let size = stored.blob.size.unsigned_abs();
    let packed = match stored.blob.content_encoding.as_deref() {
        None | Some("" | "identity") => false,
        Some("gzip") if size <= PACKED_MAX => true,
        Some(_) => return Ok(None),
    };
    let begin = if packed { 0 } else { size.saturating_sub(TAIL_BYTES) };
    let mut bytes = Vec::new();
    let mut reader = app.engine.blobs.read(stored, begin..size).await?;
    if reader.read_to_end(&mut bytes).await.is_err() {
        return Ok(None);
    }
    if !packed {
        return Ok(Some(last_lines(&bytes, begin == 0)));
    }
    Ok(unpack_apart(&app.intake.heavy, share, bytes).await)
}

/// As heavy work: anonymous visitors, who may read logs too, delay only each other.
async fn unpack_apart(heavy: &Heavy, share: Share, packed: Vec<u8>) -> Option<String> {
    let unpacked_max = usize::try_from(UNPACKED_MAX).unwrap_or(usize::MAX);
    // The decompressed size is unknown.
    heavy.run_for(share, unpacked_max, move || unpack(&packed)).await
}

/// Returns the last lines, unless the log is too large or corrupt.
fn unpack(packed: &[u8]) -> Option<String> {
    let (mut decoder, mut piece) = (MultiGzDecoder::new(packed), vec![0; 64 << 10]);
    let (mut end, mut length) = (Vec::new(), 0_u64);
    let keep = usize::try_from(TAIL_BYTES).unwrap_or(usize::MAX);
    loop {
        match decoder.read(&mut piece).ok()? {
            0 => return Some(last_lines(&end, length == end.len() as u64)),
            read => {
                length += read as u64;
                end.extend_from_slice(&piece[..read]);
                let cut = end.len().saturating_sub(keep);
                end.drain(..cut);
            }
        }
        if length > UNPACKED_MAX {
            return None;
        }
    }
}

/// Drops the partial first line of an incomplete text.
fn last_lines(bytes: &[u8], whole: bool) -> String {
    let text = plain(&mut Terminal::default(), bytes);
    let mut lines: Vec<&str> = text.lines().collect();
    if !whole && lines.len() > 1 {
        lines.remove(0);
    }
    let from = lines.len().saturating_sub(LINES_MAX);
    lines[from..].join("\n")
}

pub(in crate::http::page) fn log_section(visit: &Visit, tail: &Tail) -> Markup {
    let task = tail.of.task.to_string();
    let link = format!("{}?run={}", visit.link_to("task", &[&task, "log"]), tail.of.run);
    let note = html! { "the last " (LINES_MAX) " lines of run " (tail.of.run) " · " a href=(link) { "all of it" } };
    let body = match &tail.lines {
        Some(lines) if lines.is_empty() => html! { div.note { p { "Nothing was printed yet." } } },
        // The box shows its end.
        Some(lines) => html! { div.log tabindex="0" { pre { (lines) } } },
        None => html! { div.note { p { "The log is too large to show its end here." } } },
    };
    section("Log", &note, &body)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn numbered(lines: usize) -> String {
        (0..lines).map(|n| format!("line {n}\n")).collect()
    }

    fn zip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn last_lines_are_whole_lines() {
        assert_eq!(last_lines(b"one\ntwo", true), "one\ntwo");
        assert_eq!(last_lines(b"one\ntwo\n", false), "two");
        // The whole text is a part of one line.
        assert_eq!(last_lines(b"one", false), "one");
        assert_eq!(last_lines(b"", true), "");
        assert_eq!(last_lines(b"\x1b[31mred\x1b[0m\n\x1b]0;title\x07two", true), "red\ntwo");
        let shown = last_lines(numbered(60).as_bytes(), true);
        assert_eq!((shown.lines().count(), shown.lines().next()), (LINES_MAX, Some("line 10")));
    }

    #[test]
    fn compressed_log_has_the_same_end() {
        for lines in [0, 3, 60, 100_000] {
            let log = numbered(lines);
            assert_eq!(unpack(&zip(log.as_bytes())), Some(last_lines(log.as_bytes(), true)), "{lines} lines");
        }
        assert_eq!(unpack(b"not compressed"), None);
        let too_large = zip(&vec![b'x'; usize::try_from(UNPACKED_MAX).unwrap() + 1]);
        assert!((too_large.len() as u64) < PACKED_MAX);
        assert_eq!(unpack(&too_large), None);
    }

    /// Single-threaded, so that nothing is queued between reading `done` and the last call.
    #[tokio::test]
    async fn anonymous_logs_do_not_delay_authenticated_work() {
        let heavy = Heavy::with_turns(1);
        let (packed, done) = (zip(numbered(100_000).as_bytes()), Arc::new(AtomicUsize::new(0)));
        let strangers: Vec<_> = (0..10)
            .map(|_| {
                let (heavy, packed, done) = (heavy.clone(), packed.clone(), Arc::clone(&done));
                tokio::spawn(async move {
                    assert!(unpack_apart(&heavy, Share::Anonymous, packed).await.is_some());
                    done.fetch_add(1, Ordering::SeqCst)
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(5)).await;
        let before = done.load(Ordering::SeqCst);
        assert!(unpack_apart(&heavy, Share::Authenticated, packed).await.is_some());
        let passed = done.load(Ordering::SeqCst) - before;
        assert!(passed <= 3, "{passed} anonymous jobs ran first");
        assert!(futures_util::future::join_all(strangers).await.into_iter().all(|one| one.is_ok()));
    }
}
