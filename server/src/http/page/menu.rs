//! The menu of all pages, and of the API's documentation.

/// Addresses and names.
pub(in crate::http) const MENU: [(&str, &str); 7] = [
    ("/", "Overview"),
    ("/tasks", "Tasks"),
    ("/queues", "Queues"),
    ("/workers", "Workers"),
    ("/access", "Access"),
    ("/system", "System"),
    ("/docs/", "API"),
];

/// Returns the entry that lists the objects of a page's kind.
fn entry_of(path: &str) -> &str {
    match path.trim_start_matches('/').split('/').next().unwrap_or_default() {
        "task" | "group" | "search" | "job" | "jobs" => "/tasks",
        "queue" => "/queues",
        "worker" | "session" => "/workers",
        "client" | "role" => "/access",
        "partition" | "partitions" => "/",
        _ => path,
    }
}

/// Value of `aria-current` for an entry on the page at `path`.
pub(super) fn current(entry: &str, path: &str) -> Option<&'static str> {
    if entry == path {
        return Some("page");
    }
    (entry_of(path) == entry).then_some("true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_of_an_object_belongs_to_its_list() {
        for (path, entry, expected) in [
            ("/", "/", Some("page")),
            ("/workers", "/workers", Some("page")),
            ("/worker/g/w", "/workers", Some("true")),
            ("/session/x", "/workers", Some("true")),
            ("/queue/a/b/policy", "/queues", Some("true")),
            ("/client/a%2Fb", "/access", Some("true")),
            ("/task/x/log", "/tasks", Some("true")),
            ("/task/x", "/", None),
            ("/partition/x", "/", Some("true")),
            ("/login", "/", None),
        ] {
            assert_eq!(current(entry, path), expected, "{entry} on {path}");
        }
    }
}
