//! Targets of downloads: a file that is renamed at the end, or an unnamed file.

use std::fs::File;
use std::io::{self, Seek as _, Write};
use std::path::{Path, PathBuf};

use flate2::write::MultiGzDecoder;
use sha2::{Digest as _, Sha256};

/// Removed if dropped before [`Sink::finish`].
pub(super) struct Sink {
    way: Way,
    part: Part,
    /// Running digest of the bytes before decoding, and the expected one.
    promised: Option<(Sha256, Vec<u8>)>,
}

enum Way {
    AsItComes(Counted),
    Gzip(Box<MultiGzDecoder<Counted>>),
}

struct Counted {
    file: File,
    bytes: u64,
    digest: Sha256,
}

/// Temporary path; none for an unnamed file.
struct Part(Option<PathBuf>);

pub(super) struct Arrived {
    pub bytes: u64,
    pub sha256: [u8; 32],
    file: File,
    part: Part,
}

impl Sink {
    /// Creates a temporary file beside `to`. `promised` is the expected digest.
    pub(super) fn create(to: &Path, gzip: bool, promised: Option<Vec<u8>>) -> io::Result<Self> {
        let mut name = to.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        name.push(format!(".{}.part", uuid::Uuid::new_v4().simple()));
        let path = to.with_file_name(name);
        let file = File::create_new(&path)?;
        Ok(Self::of(file, Part(Some(path)), gzip, promised))
    }

    /// The system removes the file when it is closed, even if this process is killed.
    pub(super) fn create_unnamed(folder: &Path, gzip: bool, promised: Option<Vec<u8>>) -> io::Result<Self> {
        Ok(Self::of(tempfile::tempfile_in(folder)?, Part(None), gzip, promised))
    }

    fn of(file: File, part: Part, gzip: bool, promised: Option<Vec<u8>>) -> Self {
        let counted = Counted { file, bytes: 0, digest: Sha256::new() };
        let way = if gzip { Way::Gzip(Box::new(MultiGzDecoder::new(counted))) } else { Way::AsItComes(counted) };
        let promised = promised.map(|digest| (Sha256::new(), digest));
        Self { way, part, promised }
    }

    pub(super) fn add(mut self, chunk: &[u8]) -> io::Result<Self> {
        if let Some((digest, _)) = &mut self.promised {
            digest.update(chunk);
        }
        match &mut self.way {
            Way::AsItComes(file) => file.write_all(chunk),
            Way::Gzip(decoder) => decoder.write_all(chunk),
        }?;
        Ok(self)
    }

    pub(super) fn finish(self) -> io::Result<Arrived> {
        if self.promised.is_some_and(|(digest, promised)| digest.finalize()[..] != promised[..]) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its digest differs from the announced one"));
        }
        let Counted { file, bytes, digest } = match self.way {
            Way::AsItComes(file) => file,
            Way::Gzip(decoder) => decoder.finish()?,
        };
        Ok(Arrived { bytes, sha256: digest.finalize().into(), file, part: self.part })
    }
}

impl Arrived {
    pub(super) fn move_to(mut self, to: &Path) -> io::Result<()> {
        if let Some(path) = &self.part.0 {
            std::fs::rename(path, to)?;
        }
        self.part.0 = None;
        Ok(())
    }

    pub(super) fn into_file(self) -> io::Result<File> {
        let mut file = self.file;
        file.rewind()?;
        Ok(file)
    }
}

impl Write for Counted {
    fn write(&mut self, chunk: &[u8]) -> io::Result<usize> {
        let written = self.file.write(chunk)?;
        self.digest.update(&chunk[..written]);
        self.bytes += u64::try_from(written).unwrap_or_default();
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // If this fails, the file's suffix marks it as partial.
        let _gone = self.0.as_ref().map(std::fs::remove_file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn files(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn unnamed_file_leaves_nothing_in_folder() {
        let dir = tempfile::TempDir::new().unwrap();
        let sink = Sink::create_unnamed(dir.path(), true, None).unwrap();
        let sink = sink.add(&packed(b"hello")).unwrap();
        assert_eq!(files(dir.path()), 0);
        let text = io::read_to_string(sink.finish().unwrap().into_file().unwrap()).unwrap();
        assert_eq!((text.as_str(), files(dir.path())), ("hello", 0));
    }
}
