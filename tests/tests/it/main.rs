//! The system tests, in one program: real servers, real databases, real faults.

mod authentication;
mod bad_input;
mod events;
mod history;
mod hung_up;
mod rig;
