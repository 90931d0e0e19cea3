//! `tenure client`: placeholder for the client administration commands.

/// What to do with API clients.
#[derive(clap::Subcommand, Clone, Debug)]
pub enum ClientCommand {
    /// List the clients.
    List,
}
