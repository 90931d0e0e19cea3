//! Renders scope templates as text and checks them against the anonymous role. Templates have the
//! form of Taskcluster's API references: a text such as `queue:status:<taskId>`, `{"AllOf":
//! [...]}`, `{"AnyOf": [...]}`, `{"for": x, "in": list, "each": text}`, and `{"if": condition,
//! "then": expression}`.

use serde_json::Value;

use tenure_domain::scopes::{ANONYMOUS, satisfies};

/// Renders the expression as Markdown.
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

/// Lists that are never empty.
const NEVER_EMPTY: [&str; 2] = ["names", "prioritiesFromHighestToThatOfTheTask"];

/// True if a caller without credentials can satisfy the expression under the default role
/// `anonymous`. A list that may be empty may require nothing.
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
