//! The tables `partition_groups` and `partition_members`. A change locks the row of its group first.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgExecutor, PgPool};
use tenure_domain::partition::{Group, Member, Proposal, State};

use crate::{advisory, facts};

/// Name of the groups in [`crate::facts`].
pub const FACT: &str = "partitions";

/// An invalid stored value: our bug, or a manual change.
#[derive(Debug, thiserror::Error)]
#[error("{table}.{column} of {name} holds an impossible value")]
struct Undecodable {
    table: &'static str,
    column: &'static str,
    name: String,
}

/// A group as stored, without its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub id: i32,
    pub name: String,
    pub group: Group,
    pub created: DateTime<Utc>,
    pub now: DateTime<Utc>,
}

struct Row {
    id: i32,
    name: String,
    tick_interval: i32,
    drain_timeout: i32,
    epoch: i64,
    replicas: i16,
    proposed: i64,
    next_replicas: Option<i16>,
    draining_since: Option<DateTime<Utc>>,
    number: i64,
    since: i64,
    resumed: i64,
    created: DateTime<Utc>,
    now: DateTime<Utc>,
}

impl Row {
    fn decode(self) -> Result<Stored, sqlx::Error> {
        let bad = |column| {
            let (table, name) = ("partition_groups", self.name.clone());
            sqlx::Error::Decode(Box::new(Undecodable { table, column, name }))
        };
        let next = match self.next_replicas.zip(self.draining_since) {
            Some((replicas, since)) => {
                let replicas = u16::try_from(replicas).map_err(|_| bad("next_replicas"))?;
                Some(Proposal { replicas, since })
            }
            None => None,
        };
        let group = Group {
            interval: i64::from(self.tick_interval),
            drain_timeout: i64::from(self.drain_timeout),
            epoch: self.epoch,
            replicas: u16::try_from(self.replicas).map_err(|_| bad("replicas"))?,
            proposed: self.proposed,
            next,
            number: self.number,
            since: self.since,
            resumed: self.resumed,
        };
        Ok(Stored { id: self.id, name: self.name, group, created: self.created, now: self.now })
    }
}

pub async fn find(db: impl PgExecutor<'_>, name: &str) -> Result<Option<Stored>, sqlx::Error> {
    let row = sqlx::query_as!(
        Row,
        r#"-- find_partition
        SELECT g.id, g.name, g.tick_interval, g.drain_timeout, g.epoch, g.replicas, g.proposed, g.next_replicas,
               g.draining_since, g.number, g.since, g.resumed, g.created, db_now.now AS "now!"
        FROM partition_groups g, db_now WHERE g.name = $1"#,
        name
    )
    .fetch_optional(db)
    .await?;
    row.map(Row::decode).transpose()
}

/// Returns a group and its members as of one moment.
pub async fn read(pool: &PgPool, name: &str) -> Result<Option<(Stored, BTreeMap<String, Member>)>, sqlx::Error> {
    let mut transaction = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    let Some(stored) = find(&mut *transaction, name).await? else { return Ok(None) };
    let members = list_members(&mut *transaction, stored.id).await?;
    transaction.commit().await?;
    Ok(Some((stored, members)))
}

/// Locks a group until the end of the transaction.
pub async fn lock(transaction: &mut PgConnection, name: &str) -> Result<Option<Stored>, sqlx::Error> {
    let row = sqlx::query_as!(
        Row,
        r#"-- lock_partition_group
        SELECT g.id, g.name, g.tick_interval, g.drain_timeout, g.epoch, g.replicas, g.proposed, g.next_replicas,
               g.draining_since, g.number, g.since, g.resumed, g.created, db_now.now AS "now!"
        FROM partition_groups g, db_now WHERE g.name = $1 FOR NO KEY UPDATE OF g"#,
        name
    )
    .fetch_optional(transaction)
    .await?;
    row.map(Row::decode).transpose()
}

/// Lists all groups by name.
pub async fn list(db: impl PgExecutor<'_>) -> Result<Vec<Stored>, sqlx::Error> {
    let rows = sqlx::query_as!(
        Row,
        r#"-- list_partitions
        SELECT g.id, g.name, g.tick_interval, g.drain_timeout, g.epoch, g.replicas, g.proposed, g.next_replicas,
               g.draining_since, g.number, g.since, g.resumed, g.created, db_now.now AS "now!"
        FROM partition_groups g, db_now ORDER BY g.name"#
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(Row::decode).collect()
}

pub async fn list_names(conn: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar!("-- list_partition_names\nSELECT name FROM partition_groups").fetch_all(conn).await
}

/// Counts the members of each group that have a share or wait for one, by id of the group.
pub async fn count_members(conn: &mut PgConnection) -> Result<BTreeMap<i32, i64>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- count_partition_members
        SELECT grp, count(*) AS "members!" FROM partition_members GROUP BY grp"#
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.grp, row.members)).collect())
}

pub async fn list_members(db: impl PgExecutor<'_>, id: i32) -> Result<BTreeMap<String, Member>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- list_partition_members
        SELECT member, joined, ticked, share, next_share, acked FROM partition_members WHERE grp = $1 ORDER BY member",
        id
    )
    .fetch_all(db)
    .await?;
    let index = |share: Option<i16>, column, name: &str| match share.map(u16::try_from).transpose() {
        Ok(index) => Ok(index),
        Err(_) => {
            let (table, name) = ("partition_members", name.to_owned());
            Err(sqlx::Error::Decode(Box::new(Undecodable { table, column, name })))
        }
    };
    rows.into_iter()
        .map(|row| {
            let member = Member {
                joined: row.joined,
                ticked: row.ticked,
                index: index(row.share, "share", &row.member)?,
                next_index: index(row.next_share, "next_share", &row.member)?,
                acked: row.acked,
            };
            Ok((row.member, member))
        })
        .collect()
}

/// True if there are as many groups as `max`. Those being created at the same moment are not
/// counted.
pub async fn is_full(conn: &mut PgConnection, max: i64) -> Result<bool, sqlx::Error> {
    let count = sqlx::query_scalar!(
        r#"-- count_partitions
        SELECT count(*) AS "count!" FROM (SELECT FROM partition_groups LIMIT $1) found"#,
        max
    )
    .fetch_one(conn)
    .await?;
    Ok(count >= max)
}

/// Returns false if another transaction has just inserted it.
pub async fn insert(transaction: &mut PgConnection, name: &str, group: &Group) -> Result<bool, sqlx::Error> {
    let inserted = sqlx::query!(
        "-- insert_partition
        INSERT INTO partition_groups (name, tick_interval, drain_timeout, created)
        SELECT $1, $2, $3, db_now.now FROM db_now ON CONFLICT (name) DO NOTHING",
        name,
        group.interval as i32,
        group.drain_timeout as i32
    )
    .execute(&mut *transaction)
    .await?;
    if inserted.rows_affected() == 0 {
        return Ok(false);
    }
    facts::raise(transaction, FACT).await?;
    Ok(true)
}

/// Stores the changes of a step. The caller has locked the group.
pub async fn store(transaction: &mut PgConnection, id: i32, before: &State, after: &State) -> Result<(), sqlx::Error> {
    if after.group != before.group {
        store_group(transaction, id, &after.group).await?;
    }
    let gone: Vec<&str> =
        before.members.keys().filter(|name| !after.members.contains_key(*name)).map(String::as_str).collect();
    if !gone.is_empty() {
        sqlx::query!(
            "-- forget_partition_members
            DELETE FROM partition_members WHERE grp = $1 AND member = ANY($2)",
            id,
            &gone as &[&str]
        )
        .execute(&mut *transaction)
        .await?;
    }
    let is_changed = |(name, member): &(&String, &Member)| before.members.get(*name) != Some(*member);
    let changed: Vec<(&String, &Member)> = after.members.iter().filter(is_changed).collect();
    if changed.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = changed.iter().map(|(name, _)| name.as_str()).collect();
    let of = |value: fn(&Member) -> i64| changed.iter().map(|(_, member)| value(member)).collect::<Vec<_>>();
    let (joined, ticked) = (of(|member| member.joined), of(|member| member.ticked));
    // At most `REPLICAS_MAX`.
    let share = |index: Option<u16>| index.map(|index| index as i16);
    let shares: Vec<Option<i16>> = changed.iter().map(|(_, member)| share(member.index)).collect();
    let next_shares: Vec<Option<i16>> = changed.iter().map(|(_, member)| share(member.next_index)).collect();
    let acked: Vec<bool> = changed.iter().map(|(_, member)| member.acked).collect();
    sqlx::query!(
        "-- store_partition_members
        INSERT INTO partition_members (grp, member, joined, ticked, share, next_share, acked)
        SELECT $1, i.member, i.joined, i.ticked, i.share, i.next_share, i.acked
        FROM unnest($2::text[] /* members */, $3::bigint[] /* joined */, $4::bigint[] /* ticked */, $5::smallint[] /* shares */, $6::smallint[] /* next shares */, $7::boolean[] /* acknowledged */)
            AS i(member, joined, ticked, share, next_share, acked)
        ON CONFLICT (grp, member) DO UPDATE
            SET joined = EXCLUDED.joined, ticked = EXCLUDED.ticked, share = EXCLUDED.share,
                next_share = EXCLUDED.next_share, acked = EXCLUDED.acked",
        id,
        &names as &[&str],
        &joined,
        &ticked,
        &shares as &[Option<i16>],
        &next_shares as &[Option<i16>],
        &acked
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// The caller has locked the group.
pub async fn store_group(transaction: &mut PgConnection, id: i32, group: &Group) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- store_partition
        UPDATE partition_groups
        SET drain_timeout = $2, epoch = $3, replicas = $4, proposed = $5, next_replicas = $6, draining_since = $7,
            number = $8, since = $9, resumed = $10
        WHERE id = $1",
        id,
        group.drain_timeout as i32,
        group.epoch,
        group.replicas as i16,
        group.proposed,
        group.next.map(|next| next.replicas as i16),
        group.next.map(|next| next.since),
        group.number,
        group.since,
        group.resumed
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Keeps a group from being deleted until the end of the transaction. Returns false if it does not
/// exist.
pub async fn keep(transaction: &mut PgConnection, name: &str) -> Result<bool, sqlx::Error> {
    let kept = sqlx::query!("-- keep_partition\nSELECT FROM partition_groups WHERE name = $1 FOR KEY SHARE", name)
        .fetch_optional(transaction)
        .await?;
    Ok(kept.is_some())
}

/// Locks a group for its deletion and returns its key, once no policy that names it is being
/// stored.
pub async fn lock_whole(transaction: &mut PgConnection, name: &str) -> Result<Option<i32>, sqlx::Error> {
    sqlx::query_scalar!("-- lock_whole_partition\nSELECT id FROM partition_groups WHERE name = $1 FOR UPDATE", name)
        .fetch_optional(transaction)
        .await
}

/// Returns a queue whose policy names the group.
pub async fn find_queue(conn: &mut PgConnection, id: i32) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar!("-- find_partitioned_queue\nSELECT name FROM task_queues WHERE partition = $1 LIMIT 1", id)
        .fetch_optional(conn)
        .await
}

/// Waits until no claim of a share of the active map is in progress. Until the transaction ends, no
/// other one begins.
pub async fn lock_out_claims(transaction: &mut PgConnection, id: i32) -> Result<(), sqlx::Error> {
    sqlx::query!("-- lock_out_claims_of_shares\nSELECT FROM pg_advisory_xact_lock($1, $2)", advisory::PARTITIONS, id)
        .execute(transaction)
        .await?;
    Ok(())
}

/// Why a claim of a share may have found nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareCheck {
    /// Name of the queue's group, if it has one, and number of its active map.
    pub group: Option<(String, i64)>,
    /// True if a member has the share.
    pub is_owned: bool,
}

/// Returns none if the queue has another name by now.
pub async fn check_share(
    conn: &mut PgConnection,
    queue: i32,
    name: &str,
    share: i16,
) -> Result<Option<ShareCheck>, sqlx::Error> {
    let row = sqlx::query!(
        r#"-- check_share
        SELECT g.name AS "group?", g.epoch AS "epoch?",
               EXISTS (SELECT FROM partition_members m WHERE m.grp = g.id AND m.share = $3) AS "is_owned!"
        FROM task_queues q LEFT JOIN partition_groups g ON g.id = q.partition
        WHERE q.id = $1 AND q.name = $2"#,
        queue,
        name,
        share
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| ShareCheck { group: row.group.zip(row.epoch), is_owned: row.is_owned }))
}

/// Deletes a group and its members. The caller has locked it.
pub async fn delete(transaction: &mut PgConnection, id: i32) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- delete_partition
        WITH members AS (DELETE FROM partition_members WHERE grp = $1)
        DELETE FROM partition_groups WHERE id = $1",
        id
    )
    .execute(&mut *transaction)
    .await?;
    facts::raise(transaction, FACT).await
}
