//! hawk
