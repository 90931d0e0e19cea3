//! Logs of runs that are read while they are written: what a request may say, what a reader is shown of chunks, and what becomes of
//! a log whose run has ended.

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::live_log::LIVE_LOG_CHUNK_MAX;

use crate::artifact::{self, Artifact, Details, Stored};
use tenure_api::live_log::{BACKING_LOG, LIVE_LOG, LOG_CONTENT_TYPE, SERVER_MARK};

/// The largest offset: far more than any log has, and small enough that nothing overflows.
pub const OFFSET_MAX: u64 = 1 << 50;
/// How often it is looked whether the run of a log has ended, and whether what has failed works again.
pub const LOOK_EVERY: TimeDelta = TimeDelta::seconds(60);
/// How long a log whose worker has uploaded the whole is kept after the end of its run, for those who follow it: what is stored is
/// sent within half a second.
pub const FOLLOWERS_READ_WITHIN: TimeDelta = TimeDelta::seconds(10);
/// How long a worker may take to upload the whole log after its run has ended.
pub const WORKER_UPLOADS_WITHIN: TimeDelta = TimeDelta::minutes(2);
/// How long a log is kept after the end of its run if it can become no artifact.
pub const KEPT_AFTER_END: TimeDelta = TimeDelta::days(1);

/// Where a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// At this offset in the whole log.
    Offset(u64),
    /// So many bytes before what is its end now.
    Last(u64),
}

impl From {
    /// As the wire has it: a whole number, or a negative one for the last bytes.
    ///
    /// # Errors
    /// It is no such number, or too large.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (digits, last) = text.strip_prefix('-').map_or((text, false), |digits| (digits, true));
        let offset = offset(digits)?;
        Ok(if last { Self::Last(offset) } else { Self::Offset(offset) })
    }

    /// The offset, in a log that ends there now.
    #[must_use]
    pub fn offset(self, next: u64) -> u64 {
        match self {
            Self::Offset(offset) => offset,
            Self::Last(bytes) => next.saturating_sub(bytes),
        }
    }
}

/// An offset in a whole log.
///
/// # Errors
/// It is no whole number, or too large.
pub fn offset(text: &str) -> Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let offset = if digits { text.parse().ok().filter(|offset| *offset <= OFFSET_MAX) } else { None };
    offset.ok_or_else(|| format!("the query parameter `offset` must be a whole number of bytes, up to {OFFSET_MAX}"))
}

/// Whether a chunk may have so many bytes.
pub fn fits(bytes: usize) -> bool {
    bytes <= LIVE_LOG_CHUNK_MAX
}

/// What a reader is shown of a log: its bytes from a cursor on, each once, and a line in place of what is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// The offset of the next byte.
    pub next: u64,
}

impl Cursor {
    /// Takes a chunk, which begins at `start` and is the first that ends behind the cursor: the line in place of what is missing
    /// before it, if something is, and what is new of it. The cursor moves behind it.
    pub fn take<'a>(&mut self, start: u64, bytes: &'a [u8]) -> (Option<String>, &'a [u8]) {
        let missing = start.saturating_sub(self.next);
        let known = usize::try_from(self.next.saturating_sub(start)).unwrap_or(usize::MAX).min(bytes.len());
        self.next = self.next.max(start + bytes.len() as u64);
        ((missing > 0).then(|| missing_line(missing)), &bytes[known..])
    }

    /// The line at the end of a stream that has no more chunks, if something of the log is missing there.
    #[must_use]
    pub fn end(self, end: End) -> Option<String> {
        match end {
            End::Unwritten => None,
            End::At(next) => next.checked_sub(self.next).filter(|missing| *missing > 0).map(missing_line),
            End::Deleted => Some(deleted_line()),
        }
    }
}

/// What is known of the end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// There was no log.
    Unwritten,
    /// The offset behind its last byte.
    At(u64),
    /// The log was deleted while it was read.
    Deleted,
}

/// The line in place of so many bytes. A reader that goes on after its stream was cut adds them to those that it has read.
#[must_use]
pub fn missing_line(bytes: u64) -> String {
    format!("\n{SERVER_MARK}{bytes} bytes of the log are missing here\n")
}

/// The line at the end of a stream whose log was deleted, perhaps before it had all of it: where the log ended is not known any more.
pub fn deleted_line() -> String {
    format!("\n{SERVER_MARK}the log was deleted, and its end may be missing here; a whole log would be {BACKING_LOG}\n")
}

/// The line at the end of a log that the server has made an artifact of.
pub fn last_line(ended: DateTime<Utc>) -> String {
    format!(
        "\n{SERVER_MARK}the worker did not upload this log: this is what it had sent until its run ended at {}\n",
        ended.format("%Y-%m-%dT%H:%M:%SZ")
    )
}

/// What becomes of the chunks of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// They stay until then at least.
    Stay(DateTime<Utc>),
    /// They become the artifact with the whole log.
    Fold,
    /// They are deleted.
    Purge,
}

/// What becomes of a log of which this is known: when its run has ended, if it has, and whether its worker has uploaded the whole.
pub fn fate(ended: Option<DateTime<Utc>>, uploaded: bool, now: DateTime<Utc>) -> Fate {
    match ended {
        None => Fate::Stay(now + LOOK_EVERY),
        Some(ended) if uploaded && now < ended + FOLLOWERS_READ_WITHIN => Fate::Stay(ended + FOLLOWERS_READ_WITHIN),
        Some(_) if uploaded => Fate::Purge,
        Some(ended) if now < ended + WORKER_UPLOADS_WITHIN => Fate::Stay(ended + WORKER_UPLOADS_WITHIN),
        Some(ended) if now < ended + KEPT_AFTER_END => Fate::Fold,
        Some(_) => Fate::Purge,
    }
}

/// The artifacts that a log becomes, which end with their task: the whole log, and under the name that people look for a link to it. Of what has these names
/// already, only what the rules of artifacts let them replace is replaced. What is there already as it would be made, is not made again.
pub fn artifacts(
    old_backing: Option<&Stored>,
    old_live: Option<&Stored>,
    expires: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Vec<Stored> {
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
    fn an_offset_is_a_whole_number_or_counts_from_the_end() {
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
    fn a_reader_sees_each_byte_once_and_a_line_for_what_is_missing() {
        let mut cursor = Cursor { next: 0 };
        assert_eq!(cursor.take(0, b"abc"), (None, b"abc".as_slice()));
        // Overlaps what was seen.
        assert_eq!(cursor.take(1, b"bcdef"), (None, b"def".as_slice()));
        assert_eq!(cursor.next, 6);
        // Nothing new.
        assert_eq!(cursor.take(2, b"cd"), (None, b"".as_slice()));
        assert_eq!(cursor.next, 6);
        let (line, bytes) = cursor.take(10, b"klm");
        assert_eq!(line.unwrap(), "\n[tenure] 4 bytes of the log are missing here\n");
        assert_eq!((bytes, cursor.next), (b"klm".as_slice(), 13));
    }

    #[test]
    fn a_stream_that_ends_before_its_log_does_says_so() {
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
    fn a_log_stays_while_it_is_written_and_becomes_an_artifact_if_its_worker_makes_none() {
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
    fn a_reference_becomes_a_link_and_what_else_has_the_name_stays() {
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
        // Another server was faster: no event tells of the same link twice.
        assert!(artifacts(Some(&made[0]), Some(&made[1]), at(900), at(0)).is_empty());
        // Bytes that a worker has uploaded under that name.
        assert_eq!(names(artifacts(None, Some(&live(Details::S3)), at(900), at(0))), [BACKING_LOG]);
    }
}
