//! Refusals of request bodies.

use super::json::Unserializable;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unacceptable {
    Schema(String),
    /// Fields contradict each other or violate a rule.
    Rule(String),
    /// A server error: the valid body cannot be serialized.
    Unserializable(Unserializable),
}

impl From<Unserializable> for Unacceptable {
    fn from(error: Unserializable) -> Self {
        Self::Unserializable(error)
    }
}
