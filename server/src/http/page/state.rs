//! The state of the operator's page.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::logins::Logins;
use crate::http::intake::Intake;
use tenure_engine::engine::Engine;

/// Shared by the requests of the page; a clone is one reference count.
pub type Site = Arc<SiteState>;

/// What the pages work with.
pub struct SiteState {
    pub intake: Arc<Intake>,
    pub engine: Arc<Engine>,
    pub pages: Pages,
    /// Runs the streams of logs; the drain waits for it.
    pub tasks: TaskTracker,
    /// Cancelled when the server drains: streams end.
    pub drain: CancellationToken,
}

/// What the pages need of the root URL, and the recent wrong logins.
pub struct Pages {
    /// Scheme, host and port of the root URL, as a browser writes an origin.
    pub(super) origin: String,
    /// The path of the root URL, in front of every link.
    pub(super) base: String,
    /// The root URL, for the commands that empty sections show.
    pub(super) root_url: String,
    pub(super) logins: Logins,
}

impl Pages {
    /// Pages below this root URL.
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

    /// Whether browsers reach us by TLS.
    pub(super) fn secure(&self) -> bool {
        self.origin.starts_with("https://")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_url_gives_the_origin_and_the_path_before_links() {
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
