//! A task's log: the output of its commands, and lines of the worker.
//!
//! The size is limited while it is written. The beginning goes into a file; once that is full, the
//! latest end is kept in memory. The file is read through its original handle, so a task may
//! rename or delete it. A file that cannot be written counts as full from then on.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_api::dates::Timestamp;
use tenure_api::live_log::WORKER_MARK;

use tenure_client::artifacts::{blocking, gzip};
use tenure_client::live_log::{self, Chunk, LOG_CONTENT_TYPE};
use tenure_client::{Error, Upload};

pub(super) const LOG_FILE: &str = "live.log";
/// Kept of the end of a longer log; shows how the task ended.
const END_BYTES: u64 = 64 * 1024;
#[derive(Clone)]
pub(super) struct Log(Arc<Mutex<Written>>);

struct Written {
    file: File,
    /// Bytes in the file.
    beginning: u64,
    /// Bytes after the beginning, as far as they are kept.
    end: VecDeque<u8>,
    left_out: u64,
    /// The last line has not ended.
    within_line: bool,
    /// Maximum bytes to keep.
    most: u64,
    /// Error of the first failed write to the file.
    failed: Option<String>,
}

impl Log {
    /// Beyond `most` bytes the log loses its middle.
    pub(super) fn create(dir: &Path, most: u64) -> io::Result<Self> {
        let file = OpenOptions::new().create_new(true).read(true).write(true).open(dir.join(LOG_FILE))?;
        let written =
            Written { file, beginning: 0, end: VecDeque::new(), left_out: 0, within_line: false, most, failed: None };
        Ok(Self(Arc::new(Mutex::new(written))))
    }

    /// Appends a line of the worker.
    pub(super) fn note(&self, line: &str) {
        if let Err(error) = self.try_note(line) {
            tracing::warn!(%error, "the task's log could not be written");
        }
    }

    /// As `note`, but fails if the line cannot be written.
    pub(super) fn try_note(&self, line: &str) -> io::Result<()> {
        // In one write, because commands write concurrently.
        let mut log = self.lock();
        let begin = if log.within_line { "\n" } else { "" };
        log.write(format!("{begin}{WORKER_MARK}{line}\n").as_bytes())
    }

    /// Fails at most once: afterwards only the end of the log is kept.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.lock().write(bytes)
    }

    /// Completes the file with the kept end. No writes may follow.
    pub(super) fn finish(&self) -> io::Result<()> {
        self.lock().finish()
    }

    /// Bytes lost because they could not be written.
    pub(super) fn missing(&self) -> Option<u64> {
        let log = self.lock();
        (log.failed.is_some() && log.left_out > 0).then_some(log.left_out)
    }

    /// Compresses the current log into an unnamed file in `folder`.
    pub(super) async fn pack(&self, folder: &Path, expires: Timestamp) -> Result<Upload, Error> {
        let (log, folder) = (self.clone(), folder.to_owned());
        let packed = blocking(move || log.snapshot()?.pack(&folder)).await;
        let (packed, content_length) = packed.map_err(Error::of_file("the task's log cannot be compressed"))?;
        Ok(Upload::from_file(packed, LOG_CONTENT_TYPE, expires)?.compressed(content_length))
    }

    /// A snapshot lets later writes proceed during its compression. A task stopped meanwhile gets a
    /// line, written by a thread that serves other tasks too.
    fn snapshot(&self) -> io::Result<Snapshot> {
        let mut log = self.lock();
        let file = log.whole()?.try_clone()?;
        Ok(Snapshot { file, beginning: log.beginning, line: log.line(), end: log.end.make_contiguous().to_vec() })
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        // Writes before a panic elsewhere stay valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Snapshot {
    file: File,
    beginning: u64,
    /// Replaces the missing middle.
    line: String,
    end: Vec<u8>,
}

impl Snapshot {
    /// Also returns the uncompressed length.
    fn pack(&self, folder: &Path) -> io::Result<(File, u64)> {
        let Self { file, beginning, line, end } = self;
        let packed = gzip::compress(folder, |to| {
            gzip::copy(file, 0..*beginning, to)?;
            to.write_all(line.as_bytes())?;
            to.write_all(end)
        })?;
        Ok((packed, beginning + bytes(line.len()) + bytes(end.len())))
    }
}

impl live_log::Log for Log {
    fn length(&self) -> u64 {
        self.lock().length()
    }

    fn read(&self, from: u64, most: usize) -> io::Result<Chunk> {
        self.lock().read(from, most)
    }
}

impl Written {
    fn length(&self) -> u64 {
        self.beginning + self.left_out + bytes(self.end.len())
    }

    fn read(&self, from: u64, most: usize) -> io::Result<Chunk> {
        let from = if from < self.beginning { from } else { from.max(self.beginning + self.left_out) };
        let mut piece = Vec::new();
        if from < self.beginning {
            gzip::copy(self.whole()?, from..self.beginning.min(from.saturating_add(bytes(most))), &mut piece)?;
        }
        // The missing middle lies between the beginning and the end.
        if from >= self.beginning || self.left_out == 0 {
            let skipped = from.saturating_sub(self.beginning + self.left_out);
            let room = most - piece.len();
            piece.extend(self.end.iter().skip(usize::try_from(skipped).unwrap_or(usize::MAX)).take(room));
        }
        Ok(Chunk { offset: from, bytes: piece })
    }

    fn write(&mut self, bytes_: &[u8]) -> io::Result<()> {
        self.within_line = bytes_.last().map_or(self.within_line, |&last| last != b'\n');
        let room = if self.failed.is_none() { self.most - self.end_max() - self.beginning } else { 0 };
        let (first, rest) = bytes_.split_at(bytes_.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
        // At a fixed offset: the task may have truncated the file in its directory.
        if let Err(error) = self.file.write_all_at(first, self.beginning) {
            self.failed = Some(error.to_string());
            self.keep(bytes_);
            return Err(error);
        }
        self.beginning += bytes(first.len());
        self.keep(rest);
        Ok(())
    }

    /// Appends to the end and keeps its latest part.
    fn keep(&mut self, rest: &[u8]) {
        let complete = self.left_out == 0;
        self.end.extend(rest);
        let over = self.end.len().saturating_sub(usize::try_from(self.end_max()).unwrap_or(usize::MAX));
        self.end.drain(..over);
        self.left_out += bytes(over);
        if complete && self.left_out > 0 && self.failed.is_none() {
            // For current readers. Overwritten when the log is completed, and not essential.
            let (most, kept) = (self.most, self.end_max());
            let line = format!("\n{WORKER_MARK}of more than {most} bytes only the last {kept} will be kept, here\n");
            let _unannounced = self.file.write_all_at(line.as_bytes(), self.beginning);
        }
    }

    fn end_max(&self) -> u64 {
        END_BYTES.min(self.most / 2)
    }

    /// Replaces the missing middle.
    fn line(&self) -> String {
        let (left_out, length, most) = (self.left_out, self.length(), self.most);
        if left_out == 0 {
            return String::new();
        }
        let why = match &self.failed {
            Some(error) => format!("the log has {length}, and could not be written: {error}"),
            None => format!("the log has {length}, and {most} is the most that is kept"),
        };
        format!("\n{WORKER_MARK}{left_out} bytes are left out here: {why}\n")
    }

    fn finish(&mut self) -> io::Result<()> {
        let line = self.line();
        self.file.set_len(self.beginning)?;
        self.file.write_all_at(line.as_bytes(), self.beginning)?;
        self.file.write_all_at(self.end.make_contiguous(), self.beginning + bytes(line.len()))
    }

    /// Extends the file with zeros if the task has truncated it.
    fn whole(&self) -> io::Result<&File> {
        if self.file.metadata()?.len() < self.beginning {
            self.file.set_len(self.beginning)?;
        }
        Ok(&self.file)
    }
}

fn bytes(length: usize) -> u64 {
    u64::try_from(length).expect("no piece of memory has more than 2^64 bytes")
}

#[cfg(test)]
impl Log {
    /// Makes further writes to the file fail, as on a full disk.
    pub(super) fn fill_up(&self, dir: &Path) -> io::Result<()> {
        self.lock().file = File::open(dir.join(LOG_FILE))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const MOST: u64 = 1000;

    fn on_disk(dir: &TempDir) -> String {
        std::fs::read_to_string(dir.path().join(LOG_FILE)).unwrap()
    }

    #[test]
    fn short_log_is_kept_whole() {
        for pieces in [1, 7, 499, 500, 1000] {
            let dir = TempDir::new().unwrap();
            let log = Log::create(dir.path(), MOST).unwrap();
            let whole: Vec<u8> = (0..MOST).map(|at| b'a' + u8::try_from(at % 26).unwrap()).collect();
            whole.chunks(pieces).for_each(|piece| log.write(piece).unwrap());
            log.finish().unwrap();
            assert_eq!(on_disk(&dir).as_bytes(), whole, "{pieces}");
        }
    }

    #[test]
    fn note_starts_a_new_line() {
        let dir = TempDir::new().unwrap();
        let log = Log::create(dir.path(), MOST).unwrap();
        for piece in [b"42".as_slice(), b"", b"x\n"] {
            log.note("begins");
            log.write(piece).unwrap();
        }
        log.note("ends");
        log.finish().unwrap();
        let lines = ["begins", "42", "begins", "begins", "x", "ends"];
        let marked =
            lines.map(|line| if line.len() > 2 { format!("{WORKER_MARK}{line}\n") } else { format!("{line}\n") });
        assert_eq!(on_disk(&dir), marked.concat());
    }

    #[test]
    fn kept_parts_of_log_are_readable_while_written() {
        use live_log::Log as _;
        let dir = TempDir::new().unwrap();
        let log = Log::create(dir.path(), MOST).unwrap();
        let whole: Vec<u8> = (0..3 * MOST).map(|at| b'a' + u8::try_from(at % 26).unwrap()).collect();
        let piece =
            |from: usize, to: usize| Chunk { offset: from.try_into().unwrap(), bytes: whole[from..to].to_vec() };
        log.write(&whole[..900]).unwrap();
        assert_eq!(log.length(), 900);
        for (from, most, expected) in [
            (0, 100, piece(0, 100)),
            (450, 100, piece(450, 550)),
            (600, 1000, piece(600, 900)),
            (900, 7, piece(900, 900)),
        ] {
            assert_eq!(log.read(from, most).unwrap(), expected, "{from}");
        }
        log.write(&whole[900..]).unwrap();
        assert_eq!(log.length(), 3000);
        for (from, most, expected) in [
            (450, 100, piece(450, 500)),
            (500, 100, piece(2500, 2600)),
            (2400, 1000, piece(2500, 3000)),
            (2900, 1000, piece(2900, 3000)),
        ] {
            assert_eq!(log.read(from, most).unwrap(), expected, "{from}");
        }
    }

    #[test]
    fn writes_during_packing_do_not_wait() {
        let dir = TempDir::new().unwrap();
        let log = Log::create(dir.path(), MOST).unwrap();
        log.write(&[b'x'; 3 * 1000]).unwrap();
        let snapshot = log.snapshot().unwrap();
        let length = bytes(500 + snapshot.line.len() + 500);
        log.write(&[b'y'; 300]).unwrap();
        assert_eq!(snapshot.pack(dir.path()).unwrap().1, length);
        assert!(snapshot.end.iter().all(|byte| *byte == b'x'));
    }

    #[test]
    fn truncated_log_file_reads_as_zeros() {
        use live_log::Log as _;
        let dir = TempDir::new().unwrap();
        let log = Log::create(dir.path(), MOST).unwrap();
        let shorten = |to: u64| {
            OpenOptions::new().write(true).open(dir.path().join(LOG_FILE)).unwrap().set_len(to).unwrap();
        };
        log.write(b"cut off").unwrap();
        shorten(3);
        assert_eq!(log.read(0, 100).unwrap(), Chunk { offset: 0, bytes: b"cut\0\0\0\0".to_vec() });
        shorten(0);
        log.write(b" and on").unwrap();
        assert_eq!(log.read(0, 100).unwrap().bytes, b"\0\0\0\0\0\0\0 and on");
        shorten(0);
        log.finish().unwrap();
        assert_eq!(on_disk(&dir).len(), 14);
    }

    #[test]
    fn unwritable_log_keeps_end_and_fails_once() {
        use live_log::Log as _;
        let dir = TempDir::new().unwrap();
        let log = Log::create(dir.path(), MOST).unwrap();
        log.write(b"begun\n").unwrap();
        log.fill_up(dir.path()).unwrap();
        let lines: Vec<String> = (0..100).map(|line| format!("line {line}\n")).collect();
        let errors = lines.iter().filter(|line| log.write(line.as_bytes()).is_err()).count();
        assert_eq!(errors, 1);
        let printed = lines.concat();
        let missing = printed.len() - 500;
        assert_eq!(log.missing(), Some(bytes(missing)));
        assert_eq!(log.length(), bytes("begun\n".len() + printed.len()));
        assert_eq!(log.read(0, 100).unwrap(), Chunk { offset: 0, bytes: b"begun\n".to_vec() });
        let end = Chunk { offset: bytes("begun\n".len() + missing), bytes: printed.as_bytes()[missing..].to_vec() };
        assert_eq!(log.read(6, 1000).unwrap(), end);
        let line = log.lock().line();
        assert!(line.contains(&format!("{missing} bytes are left out here: ")) && line.contains("written: "), "{line}");
    }

    #[test]
    fn log_file_never_exceeds_limit() {
        let dir = TempDir::new().unwrap();
        let log = Log::create(dir.path(), MOST).unwrap();
        for line in 0..10_000 {
            log.write(format!("line {line}\n").as_bytes()).unwrap();
            assert!(std::fs::metadata(dir.path().join(LOG_FILE)).unwrap().len() <= MOST);
        }
        assert!(on_disk(&dir).contains("of more than 1000 bytes only the last 500 will be kept"), "{}", on_disk(&dir));
        log.note("over");
        log.finish().unwrap();
        let text = on_disk(&dir);
        assert!(text.starts_with("line 0\n") && text.ends_with("line 9999\n[tenure-worker] over\n"), "{text}");
        assert!(
            text.contains("bytes are left out here: the log has 98911, and 1000 is the most that is kept\n"),
            "{text}"
        );
    }
}
