//! states
