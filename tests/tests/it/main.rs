//! The system tests, in one program: real servers, real databases, real faults. They need the built
//! programs: `cargo build`.
//!
//! Not tested here, because each takes minutes, a separate machine, or unfinished features: power
//! cuts below the file system, silent open sockets (the limits are 120 and 95 s), ten thousand
//! dependencies at once, and the rotation of secret keys under load.

#![expect(clippy::unwrap_used, reason = "everything here is a test or a part of one")]

mod access_commands;
mod accounts;
mod admission;
mod amqp;
mod artifacts;
mod audit;
mod authentication;
mod backup;
mod bad_input;
mod behaviours;
mod blobs;
mod checkpoints;
mod command_line;
mod connections;
mod consumer;
mod conventions;
mod dead_letters;
mod delays;
mod endings;
mod endpoints;
mod enqueue_sql;
mod event_stream;
mod events;
mod failover;
mod faults;
mod faults_of_the_database;
mod fleet;
mod floods;
mod grants;
mod guarded;
mod health;
mod history;
mod hung_up;
mod jobs;
mod live_log;
mod logs;
mod name_commands;
mod objects;
mod older_server;
mod openapi;
mod page;
mod partitions;
mod plain_urls;
mod policy_commands;
mod poll;
mod poll_worker;
mod private_files;
mod proxy;
mod queue_names;
mod queue_policy;
mod read_floods;
mod reading;
mod revoked_while_waiting;
mod rig;
mod schedule_commands;
mod schedules;
mod sealed_artifacts;
mod security_headers;
mod serve;
mod session_commands;
mod sessions;
mod sse;
mod startup;
mod statistics;
mod submit;
mod subscription_commands;
mod subscriptions;
mod task_commands;
mod task_list;
mod task_options;
mod traces;
mod under_load;
mod upgrade;
mod verify_delivery;
mod waiting;
mod who_am_i;
mod why;
mod work;
mod worker_artifacts;
mod worker_commands;
mod worker_live_log;
mod worker_manager;
mod worker_stops;
mod worker_takeover;
mod workers;
