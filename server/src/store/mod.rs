//! All SQL, one file per family of tables.

pub mod clients;
