//! Variants of the received host and path that clients may have signed.

/// The official Rust client signs the path without its query. These parameters only select among
/// the results that the sender may list.
const LIST_PARAMETERS: [&str; 5] = ["limit", "continuationToken", "quarantined", "prefix", "since"];

pub(super) fn path_of_list(target: &str) -> Option<&str> {
    let (path, query) = target.split_once('?')?;
    let only_lists = query.split('&').all(|parameter| {
        let name = parameter.split('=').next().unwrap_or_default();
        LIST_PARAMETERS.contains(&name)
    });
    only_lists.then_some(path)
}

/// Returns the host with and without the brackets of an IPv6 address: the official Python and Go
/// clients sign without.
pub(super) fn hosts(host: &str) -> impl Iterator<Item = &str> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    std::iter::once(host).chain(bare)
}

/// Restores escapes that some HTTP libraries remove from a signed URL as unnecessary. Returns none
/// if the path needs no escapes.
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
