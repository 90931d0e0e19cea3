//! The page about the installation.

use super::{get, hides, log_in, shows};
use crate::rig::{Raw, Rig, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn system_shows_servers_passes_and_database() {
    let rig = Rig::start().await;
    let another = rig.another("another").await;
    let viewer = log_in(&rig, &rig.make_client("viewer", &["tenure:list-servers"]).await).await;
    assert_eq!(get(&rig, "/system", None).await.status, 403);
    let page = eventually("both servers are up, and all passes have run", async || {
        let page = get(&rig, "/system", Some(&viewer)).await;
        let text = page.text();
        let parts = ["2 of 2", "<code>database_size</code>", "works</span> checked"];
        parts.iter().all(|part| text.contains(part)).then_some(page)
    })
    .await;
    shows(
        &page,
        &[
            "this one",
            "<code>claims</code>",
            "<code>database_size</code>",
            "No pass of this server fails",
            "Largest tables",
            "<code>failures</code>",
            "servers with migration",
            "PostgreSQL",
            "synchronous_commit",
            "Last backup",
        ],
    );
    // The audit has a scope of its own.
    hides(&page, &["Latest changes"]);
    let root = log_in(&rig, &rig.root).await;
    shows(&get(&rig, "/system", Some(&root)).await, &["Latest changes", "viewer"]);
    another.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_of_a_program_is_escaped() {
    let rig = Rig::start().await;
    let hostile = rig.database.connect("\"><script>alert(1)</script>").await;
    let root = log_in(&rig, &rig.root).await;
    let page = get(&rig, "/system", Some(&root)).await;
    shows(&page, &["&lt;script&gt;alert(1)&lt;/script&gt;"]);
    hides(&page, &["<script>alert"]);
    drop(hostile);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn menu_search_and_clock_are_on_every_page() {
    let rig = Rig::start().await;
    let root = log_in(&rig, &rig.root).await;
    for path in ["/", "/workers", "/access", "/system", "/login", "/task/nonsense", "/client/root"] {
        let page = get(&rig, path, Some(&root)).await.text();
        for part in [
            "<a href=\"/tasks\"",
            "<a href=\"/system\"",
            "<a href=\"/docs/\"",
            "role=\"search\" method=\"get\" action=\"/search\"",
            "name=\"q\"",
            " UTC</time>",
        ] {
            assert!(page.contains(part), "{path} lacks {part}: {page}");
        }
    }
    let page = get(&rig, "/client/root", Some(&root)).await;
    shows(&page, &["<a href=\"/access\" aria-current=\"true\">Access</a>"]);
    shows(&get(&rig, "/system", Some(&root)).await, &["<a href=\"/system\" aria-current=\"page\">System</a>"]);
    // The interface of the API leads back.
    let docs = rig.send(&Raw::new("GET", "/docs/")).await.text();
    assert!(docs.contains("<a href=\"../system\">System</a>"), "{docs}");
}
