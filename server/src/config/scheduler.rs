//! A server's name and weight among the servers of its database.

use std::net::SocketAddr;

use clap::Args;

use super::SettingError;

const NAME_MAX: usize = 100;

#[derive(Args, Clone, Debug)]
pub struct SchedulerArgs {
    /// Name of this server in the list of servers (1 to 100 characters). Default: the machine's
    /// name and the listen port.
    #[arg(long, env = "TENURE_SERVER_NAME", value_name = "NAME")]
    pub server_name: Option<String>,

    /// Preference of this server as scheduler of assigning queues (0 to 65535). The live server
    /// with the greatest weight is chosen; equal weights share the queues. 0: never.
    #[arg(long, env = "TENURE_SCHEDULER_WEIGHT", default_value = "1", value_name = "WEIGHT")]
    pub scheduler_weight: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerSettings {
    configured_name: Option<String>,
    pub weight: u16,
}

impl SchedulerArgs {
    pub(super) fn settings(&self) -> Result<SchedulerSettings, SettingError> {
        let name = self.server_name.clone().filter(|name| !name.is_empty());
        if let Some(name) = name.as_ref().filter(|name| !is_name(name)) {
            let fix = format!("choose 1 to {NAME_MAX} characters, without line feeds and other control characters");
            return Err(SettingError::new("--server-name (TENURE_SERVER_NAME)", name.escape_debug(), fix));
        }
        Ok(SchedulerSettings { configured_name: name, weight: self.scheduler_weight })
    }
}

fn is_name(name: &str) -> bool {
    name.chars().count() <= NAME_MAX && !name.chars().any(char::is_control)
}

impl SchedulerSettings {
    #[must_use]
    pub fn name(&self, bound: SocketAddr) -> String {
        self.configured_name.clone().unwrap_or_else(|| {
            let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok());
            let host = host.filter(|host| !host.is_empty() && is_name(host));
            host.map_or_else(|| bound.to_string(), |host| format!("{host}:{}", bound.port()))
        })
    }
}
