//! Live logs: checks of requests, rendering of chunks, and the fate of a log after its run.

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::dates::Timestamp;
use tenure_api::live_log::LIVE_LOG_CHUNK_MAX;

use crate::artifact::{self, Artifact, Details, Stored};
use tenure_api::live_log::{BACKING_LOG, LIVE_LOG, LOG_CONTENT_TYPE, SERVER_MARK};

/// Far beyond any log, small enough to avoid overflow.
pub const OFFSET_MAX: u64 = 1 << 50;
/// Interval of checks for an ended run, and of retries.
pub const CHECK_EVERY: TimeDelta = TimeDelta::seconds(60);
/// Retention of an uploaded log after the run's end, for followers, who receive stored bytes within
/// half a second.
pub const FOLLOWERS_READ_WITHIN: TimeDelta = TimeDelta::seconds(10);
/// How long a worker may take to upload the whole log after the run's end.
pub const WORKER_UPLOADS_WITHIN: TimeDelta = TimeDelta::minutes(2);
/// Retention after the run's end of a log that cannot become an artifact.
pub const KEPT_AFTER_END: TimeDelta = TimeDelta::days(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    Offset(u64),
    /// Number of bytes before the current end.
    Last(u64),
}

impl From {
    /// Parses the start position. A negative number counts from the end.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (digits, last) = text.strip_prefix('-').map_or((text, false), |digits| (digits, true));
        let offset = offset(digits)?;
        Ok(if last { Self::Last(offset) } else { Self::Offset(offset) })
    }

    /// Returns the offset in a log that currently ends at `next`.
    #[must_use]
    pub fn offset(self, next: u64) -> u64 {
        match self {
            Self::Offset(offset) => offset,
            Self::Last(bytes) => next.saturating_sub(bytes),
        }
    }
}

pub fn offset(text: &str) -> Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let offset = if digits { text.parse().ok().filter(|offset| *offset <= OFFSET_MAX) } else { None };
    offset.ok_or_else(|| format!("the query parameter `offset` must be a whole number of bytes, up to {OFFSET_MAX}"))
}

pub fn fits(bytes: usize) -> bool {
    bytes <= LIVE_LOG_CHUNK_MAX
}

/// A reader's position. Each byte is shown once; a line replaces missing bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    pub next: u64,
}

impl Cursor {
    /// Takes the first chunk that ends after the cursor, at offset `start`. Returns the line for
    /// missing bytes before it, if any, and its new bytes.
    pub fn take<'a>(&mut self, start: u64, bytes: &'a [u8]) -> (Option<String>, &'a [u8]) {
        let missing = start.saturating_sub(self.next);
        let known = usize::try_from(self.next.saturating_sub(start)).unwrap_or(usize::MAX).min(bytes.len());
        self.next = self.next.max(start + bytes.len() as u64);
        ((missing > 0).then(|| missing_line(missing)), &bytes[known..])
    }

    /// Returns the line for bytes missing at the end of a stream.
    #[must_use]
    pub fn end(self, end: End) -> Option<String> {
        match end {
            End::Unwritten => None,
            End::At(next) => next.checked_sub(self.next).filter(|missing| *missing > 0).map(missing_line),
            End::Deleted => Some(deleted_line()),
        }
    }
}

/// The known end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The log never existed.
    Unwritten,
    /// The offset after the last byte.
    At(u64),
    Deleted,
}

/// A reader that reconnects adds these bytes to those it has read.
#[must_use]
pub fn missing_line(bytes: u64) -> String {
    format!("\n{SERVER_MARK}{bytes} bytes of the log are missing here\n")
}

/// The line for a log deleted while it was read: its length is no longer known.
pub fn deleted_line() -> String {
    format!("\n{SERVER_MARK}the log was deleted, and its end may be missing here; a whole log would be {BACKING_LOG}\n")
}

pub fn last_line(ended: DateTime<Utc>) -> String {
    format!(
        "\n{SERVER_MARK}the worker did not upload this log: this is what it had sent until its run ended at {}\n",
        ended.format("%Y-%m-%dT%H:%M:%SZ")
    )
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Keep at least until this time.
    Stay(DateTime<Utc>),
    /// Turn into the artifact of the whole log.
    Fold,
    Purge,
}

/// Decides whether to keep, publish or delete a log, from the end of its run and whether its worker
/// has uploaded it.
pub fn fate(ended: Option<DateTime<Utc>>, uploaded: bool, now: DateTime<Utc>) -> Fate {
    match ended {
        None => Fate::Stay(now + CHECK_EVERY),
        Some(ended) if uploaded && now < ended + FOLLOWERS_READ_WITHIN => Fate::Stay(ended + FOLLOWERS_READ_WITHIN),
        Some(_) if uploaded => Fate::Purge,
        Some(ended) if now < ended + WORKER_UPLOADS_WITHIN => Fate::Stay(ended + WORKER_UPLOADS_WITHIN),
        Some(ended) if now < ended + KEPT_AFTER_END => Fate::Fold,
        Some(_) => Fate::Purge,
    }
}

/// Returns the artifacts made from a log: the whole log, and a link to it under the well-known
/// name. They expire with the task. Existing artifacts are replaced only as their rules allow;
/// unchanged ones are left out.
pub fn artifacts(
    old_backing: Option<&Stored>,
    old_live: Option<&Stored>,
    expires: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Vec<Stored> {
    // As the worker may send it: the mark of a default would be later.
    let expires = Timestamp::new(expires).time();
    let of = |name: &str, details| Artifact {
        name: name.to_owned(),
        details,
        content_type: LOG_CONTENT_TYPE.to_owned(),
        content_length: None,
        expires,
    };
    let link = Details::Link { artifact: BACKING_LOG.to_owned() };
    let wanted = [(old_backing, of(BACKING_LOG, Details::S3)), (old_live, of(LIVE_LOG, link))];
    let stored = wanted.into_iter().filter_map(|(old, new)| {
        let artifact = artifact::combine(old, new, now).ok().filter(|decision| decision.changed)?.artifact;
        let storage_type = artifact.details.storage_type();
        let removable = artifact::removable(storage_type, artifact.expires, expires, now);
        Some(Stored { artifact, present: true, removable })
    });
    stored.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    #[test]
    fn offset_is_whole_number_or_counts_from_end() {
        assert_eq!(From::parse("0").unwrap(), From::Offset(0));
        assert_eq!(From::parse("65536").unwrap(), From::Offset(65_536));
        assert_eq!(From::parse("-100").unwrap(), From::Last(100));
        assert_eq!(From::parse(&OFFSET_MAX.to_string()).unwrap(), From::Offset(OFFSET_MAX));
        let above = (OFFSET_MAX + 1).to_string();
        for wrong in ["", "-", "--1", "+1", "1.0", "1e3", " 1", "x", "99999999999999999999999", above.as_str()] {
            assert!(From::parse(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(From::Last(100).offset(250), 150);
        assert_eq!(From::Last(100).offset(50), 0);
    }

    #[test]
    fn reader_sees_each_byte_once_and_line_for_gaps() {
        let mut cursor = Cursor { next: 0 };
        assert_eq!(cursor.take(0, b"abc"), (None, b"abc".as_slice()));
        // Overlaps earlier chunks.
        assert_eq!(cursor.take(1, b"bcdef"), (None, b"def".as_slice()));
        assert_eq!(cursor.next, 6);
        assert_eq!(cursor.take(2, b"cd"), (None, b"".as_slice()));
        assert_eq!(cursor.next, 6);
        let (line, bytes) = cursor.take(10, b"klm");
        assert_eq!(line.unwrap(), "\n[tenure] 4 bytes of the log are missing here\n");
        assert_eq!((bytes, cursor.next), (b"klm".as_slice(), 13));
    }

    #[test]
    fn truncated_stream_ends_with_line() {
        let cursor = Cursor { next: 10 };
        let cases = [
            (End::Unwritten, None),
            (End::At(9), None),
            (End::At(10), None),
            (End::At(13), Some(missing_line(3))),
            (End::Deleted, Some(deleted_line())),
        ];
        for (end, line) in cases {
            assert_eq!(cursor.end(end), line, "{end:?}");
        }
    }

    #[test]
    fn log_stays_while_written_then_becomes_artifact() {
        let cases = [
            (None, false, at(5), Fate::Stay(at(65))),
            (None, true, at(5), Fate::Stay(at(65))),
            (Some(at(0)), true, at(1), Fate::Stay(at(10))),
            (Some(at(0)), true, at(10), Fate::Purge),
            (Some(at(0)), false, at(0), Fate::Stay(at(120))),
            (Some(at(0)), false, at(119), Fate::Stay(at(120))),
            (Some(at(0)), false, at(120), Fate::Fold),
            (Some(at(0)), false, at(86_399), Fate::Fold),
            (Some(at(0)), false, at(86_400), Fate::Purge),
        ];
        for (ended, uploaded, now, expected) in cases {
            assert_eq!(fate(ended, uploaded, now), expected, "{ended:?} {uploaded} {now}");
        }
    }

    #[test]
    fn reference_becomes_link_and_other_types_stay() {
        let live = |details| Stored {
            artifact: Artifact {
                name: LIVE_LOG.to_owned(),
                details,
                content_type: "text/plain".to_owned(),
                content_length: None,
                expires: at(900),
            },
            present: true,
            removable: at(900),
        };
        let names = |stored: Vec<Stored>| -> Vec<String> { stored.into_iter().map(|one| one.artifact.name).collect() };
        assert_eq!(names(artifacts(None, None, at(900), at(0))), [BACKING_LOG, LIVE_LOG]);
        let reference = live(Details::Reference { url: "https://example.com/".to_owned() });
        let made = artifacts(None, Some(&reference), at(900), at(0));
        assert_eq!(made[1].artifact.details, Details::Link { artifact: BACKING_LOG.to_owned() });
        // Another server was faster: no event announces the same link twice.
        assert!(artifacts(Some(&made[0]), Some(&made[1]), at(900), at(0)).is_empty());
        // Bytes uploaded by a worker under that name.
        assert_eq!(names(artifacts(None, Some(&live(Details::S3)), at(900), at(0))), [BACKING_LOG]);
    }
}
