//! Refusals of request bodies.

use super::json::Unserializable;

/// Why a body is unacceptable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unacceptable {
    /// A field violates the schema.
    Schema(String),
    /// Fields contradict each other or violate a rule.
    Rule(String),
    /// The body is valid, but we cannot serialize it: a server error.
    Unserializable(Unserializable),
}

impl From<Unserializable> for Unacceptable {
    fn from(error: Unserializable) -> Self {
        Self::Unserializable(error)
    }
}
