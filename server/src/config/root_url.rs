//! What a root URL may be.

/// What to change about a root URL that cannot be used; nothing of one that can.
pub(super) fn fix(url: &str) -> Option<&'static str> {
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Some("start it with http:// or https://");
    }
    let uri = url.parse::<http::Uri>().ok();
    let authority = uri.as_ref().and_then(http::Uri::authority);
    if authority.is_none_or(|authority| authority.host().is_empty() || authority.as_str().contains('@')) {
        return Some("write a URL with a host and without a user, such as https://tenure.example.com");
    }
    // A number that is no port would count as none.
    let port = authority.and_then(|authority| authority.as_str().strip_prefix(authority.host())?.strip_prefix(':'));
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && matches!(port.parse(), Ok(1_u16..));
    if port.is_some_and(|port| !is_port(port)) {
        return Some("write a port from 1 to 65535");
    }
    if url.ends_with('/') {
        return Some("leave out the slash at the end");
    }
    url.contains(['?', '#']).then_some("leave out everything from the ? or # on")
}
