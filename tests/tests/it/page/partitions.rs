//! Partition groups on the overview and on pages of their own.

use serde_json::json;
use tenure_tests::http::TENURE_API;

use super::{get, hides, in_order, log_in, shows, sql};
use crate::rig::{Rig, eventually, ok};

/// In bytes.
const PAGE_MAX: usize = 60_000;

/// 60 members with shares, in the reverse order of their names, and a waiting one. The next map
/// takes shares from all, and the first one has acknowledged it.
const MEMBERS: &str = "
    UPDATE partition_groups
        SET epoch = 3, replicas = 60, proposed = 5, next_replicas = 61, draining_since = now(),
            number = floor(extract(epoch FROM now()) / tick_interval);
    INSERT INTO partition_members (grp, member, joined, ticked, share, next_share, acked)
        SELECT id, 'member-' || (99 - n), number - 9, number, n, n, n = 0
        FROM partition_groups, generate_series(0, 59) n;
    INSERT INTO partition_members (grp, member, joined, ticked, share, next_share, acked)
        SELECT id, 'a-late-one', number, number, NULL, 60, false FROM partition_groups;";

/// As many groups and members as a database may have, with the longest names.
const MANY: &str = "
    INSERT INTO partition_groups (name, tick_interval, drain_timeout, epoch, replicas, proposed, next_replicas, draining_since, created)
        SELECT rpad('group-' || (100 + n) || '-', 64, 'x'), 10, 0, 3, 60, 5, 61, now(), now() FROM generate_series(1, 99) n;
    INSERT INTO partition_members (grp, member, joined, ticked, share, next_share, acked)
        SELECT id, rpad('member-' || n || '-', 128, 'x'), 0, floor(extract(epoch FROM now()) / 10), n, n, false
        FROM partition_groups, generate_series(100, 219) n WHERE name LIKE 'group-%';";

async fn with_group() -> Rig {
    let rig = Rig::start().await;
    ok(rig.call("PUT", &format!("{TENURE_API}/partitions/mail"), Some(&json!({"interval": 3_600}))).await);
    rig
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_of_partition_group_lists_members_by_share() {
    let rig = with_group().await;
    let root = log_in(&rig, &rig.root).await;
    shows(&get(&rig, "/partition/mail", Some(&root)).await, &["No member has joined."]);
    sql(&rig, MEMBERS).await;
    let page = get(&rig, "/partition/mail", Some(&root)).await;
    shows(&page, &["50 of 61", "11 more: <code>tenure partition show mail</code>", "data-label=\"Last tick\""]);
    shows(&page, &["Acknowledged map", "waits for 59"]);
    // Index, next index and acknowledged map.
    assert_eq!(page.text().matches(">5</td>").count(), 3, "{}", page.text());
    in_order(&page, &[">member-99<", ">member-98<", ">member-50<"]);
    hides(&page, &[">member-49<", "a-late-one"]);
    let overview = eventually("the overview has the group", async || {
        let page = get(&rig, "/", Some(&root)).await;
        page.text().contains("Partition groups</h2>").then_some(page)
    })
    .await;
    shows(&overview, &["<a href=\"/partition/mail\">mail</a>", "and 54 more"]);
    let reader = log_in(&rig, &rig.make_client("reader", &["tenure:get-partition:mail"]).await).await;
    shows(&get(&rig, "/partition/mail", Some(&reader)).await, &["member-99"]);
    assert_eq!(get(&rig, "/partition/other", Some(&reader)).await.status, 403);
    assert_eq!(get(&rig, "/partition/mail", None).await.status, 403);
    hides(&get(&rig, "/partitions", None).await, &["mail"]);
    for missing in ["/partition/other", "/partition/a%2Fb", "/partition/%00"] {
        assert_eq!(get(&rig, missing, Some(&root)).await.status, 404, "{missing}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_many_partition_groups_stay_small() {
    let rig = with_group().await;
    sql(&rig, MANY).await;
    let root = log_in(&rig, &rig.root).await;
    let padded = |start: &str, length: usize| format!("{start:x<length$}");
    let (first, last) = (padded("group-101-", 64), padded("group-199-", 64));
    eventually("the overview has groups", async || {
        let page = get(&rig, "/", Some(&root)).await;
        page.text().contains("all partition groups</a>").then_some(())
    })
    .await;
    let next = format!("/partitions?after={}", padded("group-150-", 64));
    let of_one = format!("/partition/{first}");
    let (shown, hidden) = (padded("member-149-", 128), padded("member-150-", 128));
    for (path, part, other) in [
        ("/", &first, &last),
        ("/partitions", &first, &last),
        (next.as_str(), &last, &first),
        (of_one.as_str(), &shown, &hidden),
    ] {
        let page = get(&rig, path, Some(&root)).await;
        shows(&page, &[part.as_str()]);
        hides(&page, &[other.as_str()]);
        assert!(page.body.len() <= PAGE_MAX, "{path} has {} bytes", page.body.len());
    }
    shows(&get(&rig, "/partitions", Some(&root)).await, &[&format!("href=\"{next}\"")]);
    shows(&get(&rig, &next, Some(&root)).await, &[">mail</a>"]);
    // No calls have made these groups, and the check of the database at the end knows it.
    sql(&rig, "DELETE FROM partition_members; DELETE FROM partition_groups").await;
}
