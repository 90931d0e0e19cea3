//! File descriptors: each connection is one, and so is everything else that a server has open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors that are not for connections: those of the database's connections, of files, and of a PostgreSQL that
/// has to be started again.
const RESERVE: u64 = 96;
/// A connection on which an artifact is sent or received has a file open besides.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;
/// So many connections are served in any case.
const CONNECTIONS_MIN: usize = 8;
/// The most connections unless the operator sets another number.
const CONNECTIONS_DEFAULT: usize = 10_000;

/// The most connections at a time: as many as are configured, if the limit of open files, which is raised as far as it
/// may be, allows that.
#[must_use]
pub fn connections_max(requested: Option<usize>) -> usize {
    let limit = match raise() {
        Ok(limit) => limit,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files cannot be read; connections may use all of them up");
            return requested.unwrap_or(CONNECTIONS_DEFAULT);
        }
    };
    let allowed = connections_for(limit);
    if requested.is_some_and(|requested| requested > allowed) {
        tracing::warn!(
            connections = allowed,
            open_files = limit,
            "fewer connections than --connections-max are served: raise the limit of open files (ulimit -n, LimitNOFILE)"
        );
    }
    requested.unwrap_or(CONNECTIONS_DEFAULT).min(allowed)
}

/// Raises the limit of this process to what it may have.
///
/// # Errors
/// If the system does not say what the limit is.
fn raise() -> nix::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // Some systems say that there is no limit and refuse to lift it; then what there is has to do.
    Ok(match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    })
}

/// How many connections such a limit allows.
#[must_use]
fn connections_for(limit: u64) -> usize {
    let connections = limit.saturating_sub(RESERVE) / DESCRIPTORS_PER_CONNECTION;
    usize::try_from(connections).unwrap_or(usize::MAX).max(CONNECTIONS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_everything_else() {
        for (limit, connections) in [(0, 8), (96, 8), (256, 80), (1_024, 464), (1_048_576, 524_240)] {
            assert_eq!(connections_for(limit), connections, "{limit}");
        }
        assert!(connections_for(u64::MAX) > 1_000_000, "no limit is none");
    }
}
