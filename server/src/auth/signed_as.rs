//! What clients may have signed in place of what is received.

/// The official Rust client signs the path without its query; it sends a query only to list, and these can do no more
/// than choose among what its sender may list.
const LIST_PARAMETERS: [&str; 5] = ["limit", "continuationToken", "quarantined", "prefix", "since"];

/// The path, if the query only lists.
pub(super) fn path_of_list(target: &str) -> Option<&str> {
    let (path, query) = target.split_once('?')?;
    let only_lists = query.split('&').all(|parameter| {
        let name = parameter.split('=').next().unwrap_or_default();
        LIST_PARAMETERS.contains(&name)
    });
    only_lists.then_some(path)
}

/// The host, and without the brackets of an IPv6 address, as the official Python and Go clients sign it.
pub(super) fn hosts(host: &str) -> impl Iterator<Item = &str> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    std::iter::once(host).chain(bare)
}

/// The path as it was before an HTTP library unescaped what it thought needs no escaping, which some do to a URL after
/// it was signed. None if there is nothing of that kind in it.
pub(super) fn escaped_again(resource: &str) -> Option<String> {
    let (path, query) = resource.split_once('?').map_or((resource, None), |(path, query)| (path, Some(query)));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/%".contains(&byte);
    if path.bytes().all(plain) {
        return None;
    }
    let mut text = String::with_capacity(resource.len() * 2);
    for byte in path.bytes() {
        if plain(byte) { text.push(char::from(byte)) } else { text.push_str(&format!("%{byte:02X}")) }
    }
    query.into_iter().for_each(|query| text.extend(["?", query]));
    Some(text)
}
