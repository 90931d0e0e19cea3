//! Replication of commits, as visible to an ordinary role.
//!
//! Of a walsender, such a role sees only process and name. The two decisive settings are public.

use sqlx::PgConnection;

use crate::cluster::Warning;

/// Determines if acknowledged commits survive the loss of the primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replication {
    /// Names of connected standbys.
    pub standbys: Vec<String>,
    /// `synchronous_standby_names`.
    pub synchronous_names: String,
    /// `synchronous_commit` in our sessions.
    pub synchronous_commit: String,
}

impl Replication {
    /// Returns settings with which a failover or crash loses acknowledged commits. A
    /// `synchronous_commit` that does not wait for the standby's disk is reported even without a
    /// standby: adding one would change nothing.
    pub fn find_warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let mut warn = |setting: &str, value: &str, advice| {
            warnings.push(Warning { setting: setting.to_owned(), value: value.to_owned(), advice });
        };
        let commit = self.synchronous_commit.as_str();
        match commit {
            "off" => {
                warn(
                    "synchronous_commit",
                    commit,
                    "a crash or a failover loses tasks that were acknowledged; set it to on",
                );
            }
            "local" => {
                warn("synchronous_commit", commit, "a failover loses tasks that were acknowledged; set it to on");
            }
            "remote_write" => {
                let advice = "a crash of primary and standby together loses tasks that were acknowledged; set it to on";
                warn("synchronous_commit", commit, advice);
            }
            _ => {}
        }
        if !self.standbys.is_empty() && self.synchronous_names.trim().is_empty() {
            let advice = "no standby is synchronous, so a failover loses tasks that were acknowledged; set it to the standbys, \
                          for example to 'ANY 1 (*)'";
            warn("synchronous_standby_names", &self.synchronous_names, advice);
        }
        warnings
    }
}

/// Reads the replication state. Backups, WAL receivers and logical subscribers are not standbys.
pub async fn get(conn: &mut PgConnection) -> Result<Replication, sqlx::Error> {
    let row = sqlx::query!(
        r#"-- get_replication
        SELECT current_setting('synchronous_standby_names') AS "names!",
               current_setting('synchronous_commit') AS "commit!",
               ARRAY(
                   SELECT COALESCE(r.application_name, '') FROM pg_stat_replication r
                   WHERE r.application_name NOT IN ('pg_basebackup', 'pg_receivewal')
                     AND r.state IS DISTINCT FROM 'backup'
                     AND NOT EXISTS (
                         SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical'
                     )
                   ORDER BY r.application_name
               ) AS "standbys!""#
    )
    .fetch_one(conn)
    .await?;
    Ok(Replication { standbys: row.standbys, synchronous_names: row.names, synchronous_commit: row.commit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lossy_settings_are_reported() {
        let cases: [(&str, &str, usize, &[&str]); 8] = [
            ("on", "", 0, &[]),
            ("on", "", 1, &["synchronous_standby_names"]),
            ("on", "ANY 1 (*)", 2, &[]),
            // Commits wait: nothing is lost, and the heartbeat fails.
            ("on", "gone", 0, &[]),
            ("remote_apply", "*", 1, &[]),
            ("local", "*", 1, &["synchronous_commit"]),
            ("remote_write", "*", 1, &["synchronous_commit"]),
            ("off", " ", 1, &["synchronous_commit", "synchronous_standby_names"]),
        ];
        for (commit, names, standbys, expected) in cases {
            let replication = Replication {
                standbys: vec!["standby".to_owned(); standbys],
                synchronous_names: names.to_owned(),
                synchronous_commit: commit.to_owned(),
            };
            let warnings = replication.find_warnings();
            let settings: Vec<&str> = warnings.iter().map(|warning| warning.setting.as_str()).collect();
            assert_eq!(settings, expected, "{replication:?}");
        }
    }
}
