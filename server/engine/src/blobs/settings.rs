//! Where artifacts' bytes are stored: a folder, or a bucket of an object store.

use std::fmt;
use std::path::PathBuf;

/// The kind of object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// Amazon S3, and stores with its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
}

impl Provider {
    fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Azure => "az",
        }
    }
}

/// Where the bytes are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArtifactsPlace {
    /// Files in this folder, which is made when it is missing.
    Folder(PathBuf),
    /// Objects in this bucket. Credentials come from the provider's usual environment variables.
    Bucket {
        /// Its protocol.
        provider: Provider,
        /// The bucket or container.
        bucket: String,
        /// The prefix of all keys, without slashes at its ends; may be empty.
        prefix: String,
    },
}

impl fmt::Display for ArtifactsPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "{}", folder.display()),
            Self::Bucket { provider, bucket, prefix } if prefix.is_empty() => {
                write!(f, "{}://{bucket}", provider.scheme())
            }
            Self::Bucket { provider, bucket, prefix } => write!(f, "{}://{bucket}/{prefix}", provider.scheme()),
        }
    }
}

/// How artifacts are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactSettings {
    /// The folder or bucket.
    pub place: ArtifactsPlace,
    /// The largest one, in bytes as they are uploaded.
    pub size_max: u64,
}
