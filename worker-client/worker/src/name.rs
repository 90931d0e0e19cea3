//! The name of a worker that was given none: its host and process.

use nix::unistd::gethostname;
use tenure_api::ids::{NAME_MAX, WorkerId};

/// Used if the host has no name.
const HOST: &str = "worker";

/// Two processes of one machine have different names, and so have two hosts.
pub fn default_id() -> WorkerId {
    let host = gethostname().unwrap_or_default();
    of(&host.to_string_lossy(), std::process::id())
}

/// Returns `<host>-<process>`, with `-` for characters that no id can have. The host is named
/// without its domain. Of a long name the end is kept, which differs between the pods of a
/// Kubernetes deployment, whose processes have equal numbers.
fn of(host: &str, process: u32) -> WorkerId {
    let label = host.split('.').next().unwrap_or_default();
    let valid = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let label: String = label.chars().map(|character| if valid(character) { character } else { '-' }).collect();
    let process = process.to_string();
    let surplus = (label.len() + 1 + process.len()).saturating_sub(NAME_MAX);
    let label = match label[surplus..].trim_matches('-') {
        "" => HOST,
        label => label,
    };
    format!("{label}-{process}").parse().expect("it has only valid characters and is short enough")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_process_make_valid_id() {
        for (host, process, id) in [
            ("myhost", 12_345, "myhost-12345"),
            ("My_host-1", 1, "My_host-1-1"),
            ("linux-1.rack.example", 7, "linux-1-7"),
            ("büro 3", 7, "b-ro-3-7"),
            ("", 7, "worker-7"),
            ("...", 7, "worker-7"),
            ("日本", 7, "worker-7"),
            ("render-workers-of-acme-5d4f8c7b9d-x2x7z", 1, "der-workers-of-acme-5d4f8c7b9d-x2x7z-1"),
        ] {
            assert_eq!(of(host, process).as_str(), id, "{host}");
        }
        for process in [1, u32::MAX] {
            assert_eq!(of(&"x".repeat(300), process).as_str().len(), NAME_MAX);
        }
    }
}
