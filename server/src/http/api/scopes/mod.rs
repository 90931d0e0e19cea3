//! Scopes and credentials: queries and tests.

pub mod authenticate_hawk;
pub mod current_scopes;
pub mod expand_scopes;
pub mod test_authenticate;
