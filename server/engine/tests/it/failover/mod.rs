//! The database has lost data that this server has read.

mod caches;
mod events;
mod keys;
mod positions;
