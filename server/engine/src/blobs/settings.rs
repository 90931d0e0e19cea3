//! Settings of the artifact store.

use std::fmt;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// Amazon S3, or a store with its protocol.
    S3,
    Gcs,
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArtifactsPlace {
    /// A folder, created if missing.
    Folder(PathBuf),
    /// Objects in this bucket. Credentials come from the provider's usual environment variables.
    Bucket {
        provider: Provider,
        bucket: String,
        /// Prefix of all keys, without slashes at its ends; may be empty.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactSettings {
    pub place: ArtifactsPlace,
    /// Maximum size of an artifact, in bytes as uploaded.
    pub size_max: u64,
}
