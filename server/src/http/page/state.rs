//! State of the operator's pages.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::logins::Logins;
use crate::http::intake::Intake;
use tenure_engine::background::problems::FreeDisk;
use tenure_engine::engine::Engine;

pub type Site = Arc<SiteState>;

pub struct SiteState {
    pub intake: Arc<Intake>,
    pub engine: Arc<Engine>,
    pub pages: Pages,
    /// Of an embedded database.
    pub free_disk: Option<FreeDisk>,
    /// The drain waits for these streams of logs.
    pub tasks: TaskTracker,
    /// Cancelled on drain: streams end.
    pub drain: CancellationToken,
}

pub struct Pages {
    /// As in a browser's `Origin`.
    pub(super) origin: String,
    /// Path of the root URL, before every link.
    pub(super) base: String,
    /// For commands in empty sections.
    pub(super) root_url: String,
    pub(super) logins: Logins,
}

impl Pages {
    #[must_use]
    pub fn new(root_url: &str) -> Self {
        let scheme_end = root_url.find("://").map_or(0, |at| at + 3);
        let path = root_url[scheme_end..].find('/').map_or(root_url.len(), |at| scheme_end + at);
        Self {
            origin: root_url[..path].to_ascii_lowercase(),
            base: root_url[path..].trim_end_matches('/').to_owned(),
            root_url: root_url.to_owned(),
            logins: Logins::new(),
        }
    }

    /// True if browsers connect by TLS.
    pub(super) fn secure(&self) -> bool {
        self.origin.starts_with("https://")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_url_splits_into_origin_and_base_path() {
        for (url, origin, base, secure) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "", false),
            ("https://Tenure.example.com", "https://tenure.example.com", "", true),
            ("https://example.com/ci/tenure", "https://example.com", "/ci/tenure", true),
        ] {
            let pages = Pages::new(url);
            assert_eq!((pages.origin.as_str(), pages.base.as_str(), pages.secure()), (origin, base, secure));
        }
    }
}
