//! Partition groups: members divide work among themselves, without a coordinator.

use tenure_api::partitions::{NextMap, NextShare, Partition, PartitionMember, PartitionRequest, Tick, TickRequest};

use crate::http::api::prelude::*;
use tenure_domain::partition::{Settings, member_named, named};
use tenure_engine::ops::partitions as ops;
use tenure_engine::ops::partitions::ticks::Ticked;

const MANAGING: Template = Scope("tenure:manage-partition:<partitionName>");
const JOINING: Template = Scope("tenure:join-partition:<partitionName>");
const READING: Template = Scope("tenure:get-partition:<partitionName>");
const NO_GROUP: &str = "the partition group does not exist";
const BAD_NAME: &str = "the name has other characters than letters, digits, hyphens and underscores, or more than 64";

fn parts(app: &Api) -> ops::Parts<'_> {
    app.engine.partition_parts()
}

fn name(call: &Call) -> Result<String, ApiError> {
    Ok(named(call.text_param("partitionName"))?)
}

fn shown(found: ops::Found) -> Partition {
    let ops::Found { stored, state } = found;
    let (overall, group) = (state.overall(), state.group);
    let members = state.members.into_iter().map(|(member_id, member)| PartitionMember {
        member_id,
        index: member.index,
        next_index: member.next_index,
        draining: group.waits_for(&member, stored.now),
        number: member.ticked,
        valid_until: Timestamp::new(group.valid_until(&member)),
    });
    Partition {
        name: stored.name,
        interval: group.interval,
        drain_timeout: group.drain_timeout,
        state: overall,
        epoch: group.epoch,
        replicas: group.replicas,
        next: group.next.map(|next| NextMap {
            replicas: next.replicas,
            epoch: group.proposed,
            since: Timestamp::new(next.since),
        }),
        members: members.collect(),
        created: Timestamp::new(stored.created),
    }
}

fn example(sample: &Sample) -> Value {
    json!({
        "name": "mail",
        "interval": 10,
        "drainTimeout": 0,
        "state": "active",
        "epoch": 1,
        "replicas": 1,
        "members": [{
            "memberId": "sender-1",
            "index": 0,
            "draining": false,
            "number": 177_000_000,
            "validUntil": sample.after(20),
        }],
        "created": sample.after(0),
    })
}

/// `PUT /partitions/:partitionName`
pub fn put_partition() -> Endpoint {
    Endpoint::put("putPartition", handle_put_partition).scopes(MANAGING).described(
        "tenure",
        "Store a partition group",
        describe_put_partition,
    )
}

fn describe_put_partition(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "Creates it, or changes `drainTimeout` of an existing one, which keeps its members. Members divide any work \
             among themselves: each has the keys whose slot leaves its index when divided by the number of shares. The \
             slot of a task is the last four bytes of its id, that of another key the last four bytes of its SHA-256, \
             as a big-endian number modulo 240.",
        )
        .takes::<PartitionRequest>(&json!({"interval": 10}))
        .names(&[("partitionName", "$response.body#/name")])
        .answers::<Partition>("The partition group", &example(sample))
        .refuses(InputError, "`interval` or `drainTimeout` is out of range, or the name is invalid")
        .refuses(
            RequestConflict,
            "the interval of an existing group would change, 100 partition groups exist, or a server of an older \
             release is connected to the database",
        )
}

async fn handle_put_partition(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let name = name(&call)?;
    let sent: PartitionRequest = call.json()?;
    ops::put(parts(&app), &call.actor()?, &name, Settings::from_request(&sent)?).await?;
    ok(&shown(ops::get(parts(&app), &name).await?))
}

/// `GET /partitions/:partitionName`
pub fn get_partition() -> Endpoint {
    Endpoint::get("partition", handle_get_partition).scopes(AnyOf(&[READING, MANAGING])).described(
        "tenure",
        "Read a partition group",
        describe_get_partition,
    )
}

fn describe_get_partition(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about("With its members, their shares, and which of them the next map waits for.")
        .answers::<Partition>("The partition group", &example(sample))
        .refuses(InputError, BAD_NAME)
        .refuses(ResourceNotFound, NO_GROUP)
}

async fn handle_get_partition(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    ok(&shown(ops::get(parts(&app), &name(&call)?).await?))
}

/// `DELETE /partitions/:partitionName`
pub fn delete_partition() -> Endpoint {
    Endpoint::delete("deletePartition", handle_delete_partition).scopes(MANAGING).described(
        "tenure",
        "Delete a partition group",
        describe_delete_partition,
    )
}

fn describe_delete_partition(operation: Operation, _: &Sample) -> Operation {
    operation
        .about("Its members stop within two intervals.")
        .answers_with(
            200,
            "The partition group does not exist any more",
            "application/json",
            &json!({"type": "object", "maxProperties": 0}),
            &json!({}),
        )
        .refuses(InputError, BAD_NAME)
        .refuses(ResourceNotFound, NO_GROUP)
        .refuses(RequestConflict, "the policy of a queue names the group")
}

async fn handle_delete_partition(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    ops::delete(parts(&app), &call.actor()?, &name(&call)?).await?;
    Ok(raw("{}"))
}

/// `POST /partitions/:partitionName/tick`
pub fn tick_partition() -> Endpoint {
    Endpoint::post("tickPartition", handle_tick_partition).scopes(JOINING).described(
        "tenure",
        "Keep a share of a partition group",
        describe_tick_partition,
    )
}

fn describe_tick_partition(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "Each member calls it once per interval, early in the interval; more often is harmless. The first call \
             joins, and the first share comes within two intervals. A member works on its share until half an interval \
             before `validUntil`, by its own monotonic clock. While it is `draining`, it begins only work that is in \
             its next share, too, and sends `acked` once it has no other work.",
        )
        .takes::<TickRequest>(&json!({"memberId": "sender-1"}))
        .answers::<Tick>(
            "The share of the member",
            &json!({
                "state": "active",
                "index": 0,
                "replicas": 1,
                "epoch": 1,
                "number": 177_000_000,
                "interval": 10,
                "validUntil": sample.after(20),
                "serverTime": sample.after(1),
            }),
        )
        .refuses(InputError, "`memberId` or the name of the group is invalid")
        .refuses(ResourceNotFound, NO_GROUP)
        .refuses(RequestConflict, "the group has 1,000 members")
}

async fn handle_tick_partition(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let name = name(&call)?;
    let TickRequest { member_id, acked } = call.json()?;
    let Ticked { share, group, now } = ops::tick(parts(&app), &name, member_named(&member_id)?, acked).await?;
    let share = share.ok_or_else(|| ApiError::internal("a call of a member has no share"))?;
    ok(&Tick {
        state: share.state,
        index: share.index,
        replicas: share.index.map(|_| group.replicas),
        next: share.next.map(|next| NextShare { index: next.index, replicas: next.replicas, epoch: next.epoch }),
        epoch: group.epoch,
        number: group.number,
        interval: group.interval,
        valid_until: share.valid_until.map(Timestamp::new),
        server_time: Timestamp::new(now),
    })
}

/// `DELETE /partitions/:partitionName/members/:memberId`
pub fn leave_partition() -> Endpoint {
    Endpoint::delete("leavePartition", handle_leave_partition).scopes(JOINING).described(
        "tenure",
        "Leave a partition group",
        describe_leave_partition,
    )
}

fn describe_leave_partition(operation: Operation, _: &Sample) -> Operation {
    operation
        .about("At once: the member must have no more work. Also succeeds if it is not a member.")
        .answers_with(
            200,
            "It is not a member any more",
            "application/json",
            &json!({"type": "object", "maxProperties": 0}),
            &json!({}),
        )
        .refuses(InputError, "`memberId` or the name of the group is invalid")
        .refuses(ResourceNotFound, NO_GROUP)
}

async fn handle_leave_partition(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let name = name(&call)?;
    ops::leave(parts(&app), &name, member_named(call.text_param("memberId"))?).await?;
    Ok(raw("{}"))
}
