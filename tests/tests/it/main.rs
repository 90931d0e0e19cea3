//! The system tests, in one program: real servers, real databases, real faults.

mod authentication;
mod bad_input;
mod history;
mod hung_up;
mod proxy;
mod rig;
mod serve;
mod under_load;
