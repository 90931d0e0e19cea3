//! Plain URLs, without a signature, for artifacts that anonymous callers may read.

use tenure_api::ids::ArtifactName;

use super::error::Refused;
use super::state::StoredBytes;
use crate::http::api::artifacts::reading::scopes_to_read;
use crate::http::budget::Share;
use tenure_domain::artifact::{self, Artifact, Details, Met};
use tenure_engine::blobs::{BlobName, Part};
use tenure_store::artifacts;

/// getArtifact has resolved all links already.
const NO_LINKS: i32 = 0;

/// Checks as getArtifact does for a request without credentials: the scope first, so that names are
/// not revealed.
pub(super) async fn open(app: &StoredBytes, name: &BlobName) -> Result<BlobName, Refused> {
    let Part::Artifact(task, run, artifact_name) = name.part() else { return Err(Refused::unsigned()) };
    if artifact_name.parse::<ArtifactName>().is_err() {
        return Err(Refused::unsigned());
    }
    app.intake
        .authenticator
        .anonymous()
        .await?
        .authorize(&scopes_to_read(artifact_name))
        .map_err(Refused::not_for_anonymous)?;
    let chain = {
        let _slot = app.intake.read_slots.take(Share::Anonymous).await?;
        let mut conn = app.engine.pool.acquire().await?;
        artifacts::find_chain(&mut conn, task, Some(run), artifact_name, NO_LINKS).await?
    };
    let chain = chain.ok_or_else(Refused::nothing_stored)?;
    match artifact::meet(&[artifact_name], chain.artifacts.first(), chain.now) {
        Met::Expired => Err(Refused::expired()),
        Met::Artifact(Artifact { details: Details::S3, .. }) => Ok(name.clone()),
        Met::Artifact(Artifact { details: Details::Object { .. }, .. }) => {
            Ok(BlobName::object(&artifact::object_name(task, run, artifact_name)))
        }
        Met::Artifact(_) | Met::Nothing | Met::Link(_) | Met::Circle | Met::TooManyLinks => {
            Err(Refused::nothing_stored())
        }
    }
}
