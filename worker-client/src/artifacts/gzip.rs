//! Compresses files.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

pub(super) const ENCODING: &str = "gzip";
const BUFFER_BYTES: usize = 128 * 1024;

/// Compresses the output of `write` into an unnamed file.
///
/// ```
/// use tenure_client::artifacts::gzip;
///
/// let packed = gzip::compress(&std::env::temp_dir(), |to| to.write_all(b"hello"))?;
/// assert!(packed.metadata()?.len() > 0);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn compress(folder: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<File> {
    let mut encoder = GzEncoder::new(tempfile::tempfile_in(folder)?, Compression::default());
    write(&mut encoder)?;
    encoder.finish()
}

/// Copies a part, independent of the read position.
///
/// ```
/// # use std::io::Write as _;
/// use tenure_client::artifacts::gzip;
///
/// # let mut file = tempfile::tempfile()?;
/// file.write_all(b"head body")?;
/// let mut part: Vec<u8> = Vec::new();
/// gzip::copy(&file, 5..9, &mut part)?;
/// assert_eq!(part, b"body");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn copy(from: &File, part: Range<u64>, to: &mut dyn Write) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut at = part.start;
    while at < part.end {
        let length = usize::try_from(part.end - at).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES);
        from.read_exact_at(&mut buffer[..length], at)?;
        to.write_all(&buffer[..length])?;
        at += u64::try_from(length).unwrap_or_default();
    }
    Ok(())
}
