//! Renders printed scope templates ([`Template::to_json`](crate::http::scopes::Template::to_json)),
//! and checks them against the anonymous role.

use serde_json::Value;

use tenure_domain::scopes::{ANONYMOUS, satisfies};

/// As Markdown.
pub(super) fn in_words(expression: &Value) -> String {
    let text = |key: &str| expression[key].as_str().unwrap_or_default();
    let list = |parts: &[Value]| parts.iter().map(in_words).collect::<Vec<_>>().join(", ");
    if let Value::String(scope) = expression {
        format!("`{scope}`")
    } else if let Value::Array(parts) = &expression["AllOf"] {
        format!("all of ({})", list(parts))
    } else if let Value::Array(parts) = &expression["AnyOf"] {
        format!("any of ({})", list(parts))
    } else if expression["then"].is_null() {
        format!("`{}` for each {} in `{}`", text("each"), text("for"), text("in"))
    } else {
        format!("{} if `{}`", in_words(&expression["then"]), text("if"))
    }
}

const NEVER_EMPTY: [&str; 2] = ["names", "prioritiesFromHighestToThatOfTheTask"];

/// True if a caller without credentials may have access: by the default role `anonymous`, or
/// because a list may be empty.
pub(super) fn anonymous_has(expression: &Value) -> bool {
    if let Value::String(scope) = expression {
        ANONYMOUS.iter().any(|granted| satisfies(granted, scope))
    } else if let Value::Array(parts) = &expression["AnyOf"] {
        parts.iter().any(anonymous_has)
    } else if let Value::Array(parts) = &expression["AllOf"] {
        parts.iter().all(anonymous_has)
    } else {
        expression["in"].as_str().is_some_and(|list| !NEVER_EMPTY.contains(&list) || anonymous_has(&expression["each"]))
    }
}
