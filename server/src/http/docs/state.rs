//! The state of the documents.

use std::sync::{Arc, OnceLock};

use super::references::References;
use crate::http::files::Files;
use crate::http::intake::Intake;
use crate::http::routes::Route;

/// Shared by the requests of documents; a clone is one reference count.
pub type Docs = Arc<DocsState>;

/// An operation that answers with a document.
pub type Endpoint = crate::http::endpoint::Endpoint<DocsState>;

/// What the handlers of documents work with.
pub struct DocsState {
    pub intake: Arc<Intake>,
    pub files: Files,
    /// Where clients find the server, without a slash at its end.
    pub root_url: String,
    /// Every route of the server.
    pub routes: Vec<Route>,
    /// References and schemas, made at the first request for one of them.
    pub references: OnceLock<References>,
}

impl AsRef<Intake> for DocsState {
    fn as_ref(&self) -> &Intake {
        &self.intake
    }
}
