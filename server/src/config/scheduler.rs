//! What a server is among those of its database, and when it is replaced.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use super::{SettingError, duration, parse_duration};
use tenure_engine::schedulers::BEAT;

/// Less, and a beat that is a moment late counts as silence.
const ACTIVATION_MIN: Duration = Duration::from_millis(1_500);
/// More, and a queue whose scheduler was killed stands still for longer than anyone should wait.
const ACTIVATION_MAX: Duration = Duration::from_secs(10 * 60);
/// The longest name of a server.
const NAME_MAX: usize = 100;

/// What messages call the setting.
const ACTIVATION: &str = "--scheduler-activation (TENURE_SCHEDULER_ACTIVATION)";

/// What a server is among those of its database, as it was written.
#[derive(Args, Clone, Debug)]
pub struct SchedulerArgs {
    /// What this server is called in the list of servers (1 to 100 characters). Default: the name of the machine and the port that
    /// is listened on.
    #[arg(long, env = "TENURE_SERVER_NAME", value_name = "NAME")]
    pub server_name: Option<String>,

    /// How much this server is preferred as the scheduler of queues that assign their tasks (0 to 65535). The greatest of those that
    /// run is; of equal ones, each has a part of the queues. 0: never.
    #[arg(long, env = "TENURE_SCHEDULER_WEIGHT", default_value = "1", value_name = "WEIGHT")]
    pub scheduler_weight: u16,

    /// After how long without a sign of life a scheduler is replaced (1500ms to 10m); it gives one each second. All servers of a
    /// database must have the same. Too small, and a server that is only slow is replaced; too large, and the tasks of a server
    /// that was killed wait that long.
    #[arg(
        long,
        env = "TENURE_SCHEDULER_ACTIVATION",
        default_value = "3500ms",
        value_name = "DURATION",
        value_parser = parse_duration
    )]
    pub scheduler_activation: Duration,
}

/// What a server is among those of its database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerSettings {
    /// As given.
    configured_name: Option<String>,
    /// How much it is preferred.
    pub weight: u16,
    /// After how long without a beat a scheduler is replaced.
    pub activation: Duration,
}

impl SchedulerArgs {
    /// Checks them.
    pub(super) fn settings(&self) -> Result<SchedulerSettings, SettingError> {
        const { assert!(ACTIVATION_MIN.as_millis() > BEAT.as_millis()) };
        if !(ACTIVATION_MIN..=ACTIVATION_MAX).contains(&self.scheduler_activation) {
            let show = duration::display;
            let fix = format!("choose between {} and {}", show(ACTIVATION_MIN), show(ACTIVATION_MAX));
            return Err(SettingError::new(ACTIVATION, show(self.scheduler_activation), fix));
        }
        let name = self.server_name.clone().filter(|name| !name.is_empty());
        if let Some(name) = name.as_ref().filter(|name| !is_name(name)) {
            let fix = format!("choose 1 to {NAME_MAX} characters, without line feeds and other control characters");
            return Err(SettingError::new("--server-name (TENURE_SERVER_NAME)", name.escape_debug(), fix));
        }
        Ok(SchedulerSettings {
            configured_name: name,
            weight: self.scheduler_weight,
            activation: self.scheduler_activation,
        })
    }
}

fn is_name(name: &str) -> bool {
    name.chars().count() <= NAME_MAX && !name.chars().any(char::is_control)
}

impl SchedulerSettings {
    /// Why a server does not start whose activation time is not the one that those agree on that run.
    #[must_use]
    pub fn other_activation(&self, agreed: Duration) -> SettingError {
        let agreed = duration::display(agreed);
        let fix =
            format!("the servers of this database that run have {agreed}: choose that, or stop all of them first");
        SettingError::new(ACTIVATION, duration::display(self.activation), fix)
    }

    /// What the server is called that listens on this address.
    #[must_use]
    pub fn name(&self, bound: SocketAddr) -> String {
        self.configured_name.clone().unwrap_or_else(|| {
            let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok());
            let host = host.filter(|host| !host.is_empty() && is_name(host));
            host.map_or_else(|| bound.to_string(), |host| format!("{host}:{}", bound.port()))
        })
    }
}
