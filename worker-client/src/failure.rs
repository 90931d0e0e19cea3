//! Failures in the form that a server accepts.

use tenure_api::policy::Failure;

const MESSAGE_BYTES_MAX: usize = 4_096;
const KIND_CHARS_MAX: usize = 255;
/// Stands for an empty message, which a server refuses.
const NO_MESSAGE: &str = "no message";

/// Shortens texts that are too long, and replaces U+0000 and empty texts, which a server refuses.
pub(crate) fn acceptable(Failure { message, kind, exit_code }: &Failure) -> Failure {
    let message = without_nul(message);
    let end = message.floor_char_boundary(MESSAGE_BYTES_MAX);
    let message = if message.is_empty() { NO_MESSAGE.to_owned() } else { message[..end].to_owned() };
    let kind = kind.as_deref().map(|kind| without_nul(kind).chars().take(KIND_CHARS_MAX).collect::<String>());
    Failure { message, kind: kind.filter(|kind| !kind.is_empty()), exit_code: *exit_code }
}

fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_to_what_a_server_accepts() {
        let failure = |message: &str, kind: Option<&str>| Failure {
            message: message.to_owned(),
            kind: kind.map(str::to_owned),
            exit_code: Some(3),
        };
        let (long, long_kind) = ("x".repeat(MESSAGE_BYTES_MAX), "é".repeat(KIND_CHARS_MAX));
        for (given, sent) in [
            (failure("no disk", Some("OSError")), failure("no disk", Some("OSError"))),
            (failure(&long, Some(&long_kind)), failure(&long, Some(&long_kind))),
            (failure(&format!("{long}y"), Some(&format!("{long_kind}e"))), failure(&long, Some(&long_kind))),
            // The last character would not fit.
            (failure(&format!("{}é", &long[1..]), None), failure(&long[1..], None)),
            (failure("a\0b", Some("\0")), failure("a\u{fffd}b", Some("\u{fffd}"))),
            (failure("", Some("")), failure(NO_MESSAGE, None)),
        ] {
            assert_eq!(acceptable(&given), sent);
        }
    }
}
