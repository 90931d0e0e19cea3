//! Why the rules refuse a request's body.

use super::json::Unserializable;

/// Why a body is not acceptable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unacceptable {
    /// A field does not fit the schema.
    Schema(String),
    /// Fields contradict each other or break a rule.
    Rule(String),
    /// It is acceptable, and still we cannot write it down: a fault of ours.
    Unserializable(Unserializable),
}

impl From<Unserializable> for Unacceptable {
    fn from(error: Unserializable) -> Self {
        Self::Unserializable(error)
    }
}
