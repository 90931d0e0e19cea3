//! The database turns out to have lost something that this server has read from it: nothing that is acknowledged afterwards
//! is stranded, and nothing that was read before is used.

mod caches;
mod events;
mod keys;
mod positions;
