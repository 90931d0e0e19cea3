//! worker-client
