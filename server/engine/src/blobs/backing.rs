//! The store of the bytes: files in a folder, or objects in a bucket. Keys derive from the
//! generation's id alone, so that names never reach a file system.

use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientConfigKey, ObjectStore, ObjectStoreExt as _, RetryConfig};
use uuid::Uuid;

use super::settings::{ArtifactsPlace, Provider};

/// Minimum part of an object store.
const PART_IN_BUCKET: usize = 5 << 20;
const PART_IN_FOLDER: usize = 256 << 10;
const PRIVATE_FOLDER: u32 = 0o700;
const OPEN_TO_OTHERS: u32 = 0o077;
/// Each upload holds up to four parts in memory.
const UPLOADS_INTO_BUCKET: usize = 50;
const UPLOADS_INTO_FOLDER: usize = 500;
/// Limit for one run or object while half of the slots are taken: some workers upload all artifacts
/// of a run at once. Further uploads wait.
const UPLOADS_OF_ONE_INTO_BUCKET: usize = 10;
const UPLOADS_OF_ONE_INTO_FOLDER: usize = 50;
const RETRIES_MAX: usize = 3;
const RETRIES_FOR: Duration = Duration::from_secs(30);
/// HTTP client of object stores. A response may take any time, as long as data arrives.
const CLIENT: [(ClientConfigKey, &str); 3] = [
    (ClientConfigKey::ConnectTimeout, "5 seconds"),
    (ClientConfigKey::ReadTimeout, "30 seconds"),
    (ClientConfigKey::Timeout, "1 day"),
];
/// Variables with the address of an object store other than the provider's own.
const ENDPOINTS: [&str; 6] = [
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_ENDPOINT",
    "GOOGLE_BASE_URL",
];

pub(super) type StoreError = object_store::Error;

pub(super) struct Backing {
    place: ArtifactsPlace,
    prefix: Path,
    opened: OnceLock<Arc<dyn ObjectStore>>,
    pub(super) part: usize,
    pub(super) uploads_max: usize,
    pub(super) uploads_of_one_max: usize,
}

impl Backing {
    pub(super) fn new(place: ArtifactsPlace) -> Self {
        let (prefix, part, uploads_max, uploads_of_one_max) = match &place {
            ArtifactsPlace::Folder(_) => {
                (Path::default(), PART_IN_FOLDER, UPLOADS_INTO_FOLDER, UPLOADS_OF_ONE_INTO_FOLDER)
            }
            ArtifactsPlace::Bucket { prefix, .. } => {
                (Path::from(prefix.as_str()), PART_IN_BUCKET, UPLOADS_INTO_BUCKET, UPLOADS_OF_ONE_INTO_BUCKET)
            }
        };
        Self { place, prefix, opened: OnceLock::new(), part, uploads_max, uploads_of_one_max }
    }

    /// True if a failed request may have succeeded, or may still succeed later.
    pub(super) fn may_be_late(&self) -> bool {
        matches!(self.place, ArtifactsPlace::Bucket { .. })
    }

    /// Returns the store, opening it on first use. A failure is retried at the next call: the
    /// folder may be created later, and a server without artifacts is better than none.
    pub(super) fn store(&self) -> Result<Arc<dyn ObjectStore>, StoreError> {
        if let Some(store) = self.opened.get() {
            return Ok(Arc::clone(store));
        }
        let store = open(&self.place)?;
        Ok(Arc::clone(self.opened.get_or_init(|| store)))
    }

    /// Returns the key of a generation.
    pub(super) fn key(&self, id: Uuid) -> Path {
        let [folder, name] = folder_and_name(id);
        self.prefix.clone().join(folder.as_str()).join(name.as_str())
    }

    /// Removes the bytes of a generation, complete or not, if any.
    pub(super) async fn remove(&self, id: Uuid) -> Result<(), StoreError> {
        let key = self.key(id);
        match self.store()?.delete(&key).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        if let ArtifactsPlace::Folder(folder) = &self.place {
            remove_unfinished(folder, &key).await?;
        }
        Ok(())
    }

    /// Reads a missing key to detect wrong credentials and addresses.
    pub(super) async fn probe(&self) -> Result<(), StoreError> {
        match self.store()?.head(&self.key(Uuid::nil())).await {
            Ok(_) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Two leading digits keep folders small.
fn folder_and_name(id: Uuid) -> [String; 2] {
    let name = id.simple().to_string();
    [name[..2].to_owned(), name]
}

/// Returns the path of a generation's bytes within an artifact folder.
#[must_use]
pub fn path_in_folder(id: Uuid) -> String {
    folder_and_name(id).join("/")
}

/// Removes the file of an incomplete upload, which is beside its destination. A killed server
/// leaves it there.
async fn remove_unfinished(folder: &FilePath, key: &Path) -> Result<(), StoreError> {
    let unfinished = PathBuf::from(format!("{}#1", folder.join(key.as_ref()).display()));
    match tokio::fs::remove_file(&unfinished).await {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

pub(super) fn io_error(error: std::io::Error) -> StoreError {
    StoreError::Generic { store: "artifacts", source: error.into() }
}

/// Creates the folder, or closes an existing one to other users: an earlier release may have left
/// open files in it. New files in it are private by the umask.
fn make_private(folder: &FilePath) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(folder)?;
    let mut permissions = std::fs::metadata(folder)?.permissions();
    let mode = permissions.mode() & 0o7777;
    if mode & OPEN_TO_OTHERS == 0 {
        return Ok(());
    }
    // Keep other bits of the mode, such as setgid: the operator set them.
    permissions.set_mode(mode & !OPEN_TO_OTHERS);
    if let Err(error) = std::fs::set_permissions(folder, permissions) {
        let folder = folder.display();
        tracing::warn!(error = %error, "the folder of artifacts {folder} cannot be closed to other users: set its mode to 0700");
    }
    Ok(())
}

fn open(place: &ArtifactsPlace) -> Result<Arc<dyn ObjectStore>, StoreError> {
    let (provider, bucket) = match place {
        ArtifactsPlace::Folder(folder) => {
            make_private(folder).map_err(io_error)?;
            // Acknowledged bytes must survive a power cut, like the rows in the database.
            return Ok(Arc::new(LocalFileSystem::new_with_prefix(folder)?.with_fsync(true)));
        }
        ArtifactsPlace::Bucket { provider, bucket, .. } => (*provider, bucket),
    };
    // The HTTP client has no cryptography of its own. An earlier choice is no error.
    let _already = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig { max_retries: RETRIES_MAX, retry_timeout: RETRIES_FOR, ..RetryConfig::default() };
    // An address without TLS is deliberate.
    let plain = ENDPOINTS.iter().any(|name| std::env::var(name).is_ok_and(|url| url.starts_with("http://")));
    let allow_http = plain.then_some((ClientConfigKey::AllowHttp, "true"));
    let client = CLIENT.into_iter().chain(allow_http);
    match provider {
        Provider::S3 => {
            let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
            let set =
                |builder: AmazonS3Builder, (key, value)| builder.with_config(AmazonS3ConfigKey::Client(key), value);
            Ok(Arc::new(client.fold(builder, set).build()?))
        }
        Provider::Gcs => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retry);
            let set = |builder: GoogleCloudStorageBuilder, (key, value)| {
                builder.with_config(GoogleConfigKey::Client(key), value)
            };
            Ok(Arc::new(client.fold(builder, set).build()?))
        }
        Provider::Azure => {
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket).with_retry(retry);
            let set =
                |builder: MicrosoftAzureBuilder, (key, value)| builder.with_config(AzureConfigKey::Client(key), value);
            Ok(Arc::new(client.fold(builder, set).build()?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_derives_from_id_alone() {
        let id = Uuid::from_u128(0xab12 << 112);
        let place = ArtifactsPlace::Bucket { provider: Provider::S3, bucket: "b".to_owned(), prefix: "x/y".to_owned() };
        assert_eq!(Backing::new(place).key(id).as_ref(), "x/y/ab/ab120000000000000000000000000000");
        let folder = ArtifactsPlace::Folder(PathBuf::from("/nowhere"));
        assert_eq!(Backing::new(folder).key(id).as_ref(), "ab/ab120000000000000000000000000000");
        assert_eq!(path_in_folder(id), "ab/ab120000000000000000000000000000");
    }

    #[tokio::test]
    async fn remove_deletes_incomplete_upload_of_killed_server() {
        let folder = tempfile::tempdir().unwrap();
        let backing = Backing::new(ArtifactsPlace::Folder(folder.path().join("made")));
        let id = Uuid::new_v4();
        backing.remove(id).await.unwrap();
        let whole = folder.path().join("made").join(backing.key(id).as_ref());
        let left = PathBuf::from(format!("{}#1", whole.display()));
        std::fs::create_dir_all(whole.parent().unwrap()).unwrap();
        std::fs::write(&whole, "whole").unwrap();
        std::fs::write(&left, "half").unwrap();
        backing.remove(id).await.unwrap();
        assert!(!whole.exists() && !left.exists());
    }

    #[test]
    fn open_folder_is_closed_to_others_and_keeps_other_bits() {
        let folder = tempfile::tempdir().unwrap();
        let mode = || std::fs::metadata(folder.path()).unwrap().permissions().mode() & 0o7777;
        for (before, after) in [(0o3775, 0o3700), (0o755, 0o700), (0o1700, 0o1700)] {
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(before)).unwrap();
            make_private(folder.path()).unwrap();
            assert_eq!(mode(), after, "{before:o} became {:o}", mode());
        }
    }

    #[test]
    fn uncreatable_folder_is_created_later() {
        let folder = tempfile::tempdir().unwrap();
        let way = folder.path().join("way");
        std::fs::write(&way, "a file is in the way").unwrap();
        let backing = Backing::new(ArtifactsPlace::Folder(way.join("artifacts")));
        assert!(backing.store().is_err());
        std::fs::remove_file(&way).unwrap();
        assert!(backing.store().is_ok());
    }
}
