//! Storage of artifacts: a folder, or a bucket of an object store.

use std::path::{Component, Path, PathBuf};

use super::SettingError;
use tenure_engine::blobs::settings::{ArtifactsPlace, Provider};

/// Default, in the data directory.
const DEFAULT_FOLDER: &str = "artifacts";
pub const ARTIFACTS_SETTING: &str = "--artifacts-url (TENURE_ARTIFACTS_URL)";
const FORMS: &str = "write file:///folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix";
const BUCKET_CHARS_MAX: usize = 222;

/// Largest first.
const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)];

pub fn read_place(given: Option<&str>, data_dir: &Path) -> Result<ArtifactsPlace, SettingError> {
    let Some(url) = given.filter(|url| !url.is_empty()) else {
        return Ok(ArtifactsPlace::Folder(data_dir.join(DEFAULT_FOLDER)));
    };
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(SettingError::new(ARTIFACTS_SETTING, url, FORMS));
    };
    let provider = match scheme {
        // The folder is closed to other users, which must not happen to the whole machine. Links
        // are not followed: a typing mistake names the root itself.
        "file" if rest.starts_with('/') && is_root(Path::new(rest)) => {
            let fix = "name a folder of its own, such as file:///var/lib/tenure/artifacts: the server closes it to \
                       other users";
            return Err(SettingError::new(ARTIFACTS_SETTING, url, fix));
        }
        "file" if rest.starts_with('/') && !rest.contains(['?', '#', '%']) => {
            return Ok(ArtifactsPlace::Folder(PathBuf::from(rest)));
        }
        "file" => {
            let fix = "write the absolute path of a folder without escapes, such as file:///var/lib/tenure/artifacts";
            return Err(SettingError::new(ARTIFACTS_SETTING, url, fix));
        }
        "s3" => Provider::S3,
        "gs" => Provider::Gcs,
        "az" | "azure" => Provider::Azure,
        _ => return Err(SettingError::new(ARTIFACTS_SETTING, without_user(url), FORMS)),
    };
    if rest.contains('@') {
        // The value is not repeated: it may contain a secret.
        let fix = "leave out the part before the @: credentials come from the environment, see docs/artifact-store.md";
        return Err(SettingError::secret(ARTIFACTS_SETTING, fix));
    }
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if bucket.is_empty() || bucket.len() > BUCKET_CHARS_MAX || !bucket.chars().all(allowed) {
        let fix = "write the name of the bucket after the ://, such as s3://bucket/prefix; the server's address goes \
                   into the environment, see docs/artifact-store.md";
        return Err(SettingError::new(ARTIFACTS_SETTING, url, fix));
    }
    let prefix = prefix.trim_end_matches('/');
    let segments = prefix.split('/').all(|segment| !matches!(segment, "" | "." | "..") && segment.chars().all(allowed));
    if !prefix.is_empty() && !segments {
        return Err(SettingError::new(
            ARTIFACTS_SETTING,
            url,
            "use letters, digits, - _ . and single slashes in the prefix",
        ));
    }
    Ok(ArtifactsPlace::Bucket { provider, bucket: bucket.to_owned(), prefix: prefix.to_owned() })
}

/// True if a path names the root of the file system, in any spelling.
fn is_root(path: &Path) -> bool {
    let mut depth = 0_usize;
    for component in path.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::ParentDir => depth = depth.saturating_sub(1),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    depth == 0
}

fn without_user(url: &str) -> &str {
    url.rsplit_once('@').map_or(url, |(_, rest)| rest)
}

/// Parses `1048576`, `512KiB`, `100MiB` or `10GiB`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    match (number.parse::<u64>(), factor) {
        (Ok(number), Some(factor)) => number.checked_mul(factor).ok_or_else(|| "that is too large".to_owned()),
        _ => Err("write a whole number of bytes, or one with a unit: 1048576, 512KiB, 100MiB or 10GiB".to_owned()),
    }
}

/// The inverse of [`parse_size`].
pub(super) fn display_size(bytes: u64) -> String {
    let fits = |factor: u64| bytes > 0 && bytes.is_multiple_of(factor);
    let (unit, factor) = UNITS.into_iter().find(|(_, factor)| fits(*factor)).unwrap_or(("", 1));
    format!("{}{unit}", bytes / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: &str) -> Result<ArtifactsPlace, String> {
        read_place(Some(url), Path::new("/data")).map_err(|error| error.to_string())
    }

    fn bucket(provider: Provider, bucket: &str, prefix: &str) -> ArtifactsPlace {
        ArtifactsPlace::Bucket { provider, bucket: bucket.to_owned(), prefix: prefix.to_owned() }
    }

    #[test]
    fn artifacts_url_selects_folder_or_bucket() {
        let default = ArtifactsPlace::Folder(PathBuf::from("/data/artifacts"));
        assert_eq!(read_place(None, Path::new("/data")), Ok(default.clone()));
        assert_eq!(place(""), Ok(default));
        assert_eq!(place("file:///srv/a"), Ok(ArtifactsPlace::Folder(PathBuf::from("/srv/a"))));
        assert_eq!(place("s3://b"), Ok(bucket(Provider::S3, "b", "")));
        assert_eq!(place("s3://b/"), Ok(bucket(Provider::S3, "b", "")));
        assert_eq!(place("s3://b/x/y/"), Ok(bucket(Provider::S3, "b", "x/y")));
        assert_eq!(place("gs://b_1/x"), Ok(bucket(Provider::Gcs, "b_1", "x")));
        assert_eq!(place("az://c"), Ok(bucket(Provider::Azure, "c", "")));
        assert_eq!(place("azure://c/p"), Ok(bucket(Provider::Azure, "c", "p")));
    }

    #[test]
    fn invalid_artifacts_url_is_refused_with_fix() {
        for (url, part) in [
            ("artifacts", "file:///folder"),
            ("/srv/artifacts", "file:///folder"),
            ("ftp://host/x", "s3://bucket/prefix"),
            ("S3://bucket", "s3://bucket/prefix"),
            ("https://bucket.s3.amazonaws.com", "s3://bucket/prefix"),
            ("file://relative", "file:///var"),
            ("file:///with%20space", "file:///var"),
            ("file:///", "a folder of its own"),
            ("file:////", "a folder of its own"),
            ("file:///srv/../.", "a folder of its own"),
            ("s3://", "name of the bucket"),
            ("s3:///prefix", "name of the bucket"),
            ("s3://host:9000/bucket", "goes into the environment"),
            ("s3://b/x//y", "single slashes"),
            ("s3://b/../y", "single slashes"),
            ("s3://b/a?b", "single slashes"),
        ] {
            let line = place(url).unwrap_err();
            assert!(line.contains("--artifacts-url") && line.contains(url) && line.contains(part), "{line}");
        }
        let line = place("s3://key:hunter2@bucket").unwrap_err();
        assert!(!line.contains("hunter2") && line.contains("environment"), "{line}");
        assert!(!place("https://key:hunter2@bucket").unwrap_err().contains("hunter2"));
    }

    #[test]
    fn size_is_bytes_or_has_unit() {
        for (text, bytes) in
            [("0", 0), ("1", 1), ("1000", 1000), ("512KiB", 524_288), ("3MiB", 3 << 20), ("10GiB", 10 << 30)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
            assert_eq!(parse_size(&display_size(bytes)), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "1.5GiB", "1 GiB", "1gib", "1GB", "-1", "99999999999GiB", "18446744073709551616"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
