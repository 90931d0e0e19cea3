//! The database has lost data that this server has read: later acknowledged work is not stranded,
//! and stale data is not used.

mod caches;
mod events;
mod keys;
mod positions;
