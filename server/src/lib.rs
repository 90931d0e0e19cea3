//! Tenure: a task queue as an HTTP service on PostgreSQL. See ARCHITECTURE.md for the map.
