//! The administration commands of `tenure`: what they print and which operation they call.

pub mod client;
