//! State of the documents' handlers.

use std::sync::{Arc, OnceLock};

use super::references::References;
use crate::http::files::Files;
use crate::http::intake::Intake;
use crate::http::routes::Route;

pub type Docs = Arc<DocsState>;

pub type Endpoint = crate::http::endpoint::Endpoint<DocsState>;

pub struct DocsState {
    pub intake: Arc<Intake>,
    pub files: Files,
    /// Without a trailing slash.
    pub root_url: String,
    pub routes: Vec<Route>,
    /// Built on the first request.
    pub references: OnceLock<References>,
}

impl AsRef<Intake> for DocsState {
    fn as_ref(&self) -> &Intake {
        &self.intake
    }
}
