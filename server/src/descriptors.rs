//! File descriptors, which limit the number of connections.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// For database connections, files, and a restarted PostgreSQL.
const RESERVE: u64 = 96;
/// An artifact transfer also has a file open.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;
/// Served under any limit.
const CONNECTIONS_MIN: usize = 8;
const CONNECTIONS_DEFAULT: usize = 10_000;

/// Raises the limit of open files as far as possible, and returns how many of the requested
/// connections it allows.
#[must_use]
pub fn connections_max(requested: Option<usize>) -> usize {
    let limit = match raise() {
        Ok(limit) => limit,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files cannot be read; connections may use up all open files");
            return requested.unwrap_or(CONNECTIONS_DEFAULT);
        }
    };
    let allowed = connections_for(limit);
    if requested.is_some_and(|requested| requested > allowed) {
        tracing::warn!(
            connections = allowed,
            open_files = limit,
            "the server accepts fewer connections than --connections-max: raise the limit of open files (ulimit -n, \
             LimitNOFILE)"
        );
    }
    requested.unwrap_or(CONNECTIONS_DEFAULT).min(allowed)
}

fn raise() -> nix::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // Some systems report no limit, but refuse to lift it.
    Ok(match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    })
}

#[must_use]
fn connections_for(limit: u64) -> usize {
    let connections = limit.saturating_sub(RESERVE) / DESCRIPTORS_PER_CONNECTION;
    usize::try_from(connections).unwrap_or(usize::MAX).max(CONNECTIONS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_other_uses() {
        for (limit, connections) in [(0, 8), (96, 8), (256, 80), (1_024, 464), (1_048_576, 524_240)] {
            assert_eq!(connections_for(limit), connections, "{limit}");
        }
        assert!(connections_for(u64::MAX) > 1_000_000, "no limit");
    }
}
