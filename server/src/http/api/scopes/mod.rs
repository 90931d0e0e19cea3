//! Scopes and credentials: queries by callers and other services, and tests of clients.

pub mod authenticate_hawk;
pub mod current_scopes;
pub mod expand_scopes;
pub mod test_authenticate;
