//! The system tests, in one program: real servers, real databases, real faults.

mod history;
