//! What scopes and credentials amount to: for callers themselves, for other services, and for tests of clients.

pub mod authenticate_hawk;
pub mod current_scopes;
pub mod expand_scopes;
pub mod test_authenticate;
