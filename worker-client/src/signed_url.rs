//! Signed URLs: each grants reading one resource without credentials until it expires.

use std::time::Duration;

use reqwest::Url;
use tenure_api::hawk::bewit::{SignUrl, bewit};

use crate::Client;

impl Client {
    /// Signs a URL for this path (with its query) below the root URL. None without credentials or
    /// with an invalid path.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn example(client: &tenure_client::Client) {
    /// let path = "/api/queue/v1/task/9HrBC1jMQ3KlZw4CssPUeQ/status";
    /// if let Some(url) = client.signed_url(path, Duration::from_secs(900)) {
    ///     println!("good for a quarter of an hour: {url}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn signed_url(&self, path: &str, lifetime: Duration) -> Option<String> {
        let credentials = self.credentials()?;
        if !path.starts_with('/') {
            return None;
        }
        // A client will send the normalized URL.
        let mut url = Url::parse(&format!("{}{path}", self.root_url())).ok()?;
        url.set_fragment(None);
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        let seconds = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
        let value = bewit(
            &credentials,
            &SignUrl {
                resource: &format!("{}{query}", url.path()),
                host: url.host_str()?,
                port: url.port_or_known_default()?,
                expires: self.now().time().timestamp().saturating_add(seconds),
            },
        );
        let separator = if query.is_empty() { '?' } else { '&' };
        Some(format!("{url}{separator}bewit={value}"))
    }
}

#[cfg(test)]
mod tests {
    use tenure_api::hawk::bewit::{Bewit, split_url};

    use super::*;
    use crate::{AccessToken, Credentials};

    fn client(root_url: &str) -> Client {
        Client::builder().root_url(root_url).build().unwrap()
    }

    fn credentials() -> Credentials {
        let access_token = AccessToken::new("secret".to_owned());
        Credentials { client_id: "ci".to_owned(), access_token, certificate: None }
    }

    #[test]
    fn signed_url_is_signed_as_sent() {
        for (root, path, resource, host, port) in [
            ("http://localhost:8080", "/a/b%2Fc", "/a/b%2Fc", "localhost", 8080),
            ("https://example.com/tenure/", "/a?b=1", "/tenure/a?b=1", "example.com", 443),
            ("http://example.com", "/a b?c=d e#f", "/a%20b?c=d%20e", "example.com", 80),
        ] {
            let signed = client(root).with_credentials(credentials());
            let url = signed.signed_url(path, Duration::from_secs(60)).unwrap();
            let target = &url[url.find(host).unwrap()..];
            let target = &target[target.find('/').unwrap()..];
            let found = split_url(target).unwrap();
            assert_eq!(found.resource, resource);
            let bewit = Bewit::parse(found.bewit).unwrap();
            assert!(bewit.signed_by(&credentials().access_token.key(), resource, host, port), "{url}");
            let left = bewit.expires - signed.now().time().timestamp();
            assert!((58..=60).contains(&left), "{left}");
        }
    }

    #[test]
    fn signed_url_needs_credentials_and_path() {
        assert_eq!(client("http://localhost").signed_url("/a", Duration::from_secs(1)), None);
        let signed = client("http://localhost").with_credentials(credentials());
        assert_eq!(signed.signed_url("a", Duration::from_secs(1)), None);
        assert_eq!(signed.signed_url(":80/a", Duration::from_secs(1)), None);
    }
}
