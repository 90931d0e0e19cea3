//! The pages of clients and roles: scopes, answers and forms.

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;

use super::actions::{Visitor, hidden};
use super::{HOSTILE, get, hides, log_in, shows};
use crate::rig::{Rig, ok};

const AUTH_API: &str = "/api/auth/v1";

/// The token that a page shows once.
fn token(text: &str) -> &str {
    let (_, rest) = text.split_once("<pre class=\"token\" tabindex=\"0\">").expect("the page shows a token");
    rest.split('<').next().expect("the token ends")
}

async fn audited(rig: &Rig, object: &str) -> Vec<Value> {
    let audit = ok(rig.call("GET", &format!("{TENURE_API}/audit?object={object}"), None).await);
    audit["audit"].as_array().unwrap().iter().map(|entry| entry["action"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_and_roles_are_shown_by_scope() {
    let rig = Rig::start().await;
    rig.make_client("acme/ci", &["queue:create-task:low:acme/*", "assume:team:acme"]).await;
    let role = json!({"description": HOSTILE, "scopes": ["queue:claim-work:<..>/*"]});
    ok(rig.call("PUT", &format!("{AUTH_API}/roles/team%3A%2A"), Some(&role)).await);
    let root = log_in(&rig, &rig.root).await;
    let page = get(&rig, "/access", Some(&root)).await;
    shows(&page, &["acme/ci", "team:acme", "/role/team%3A%2A", "anonymous", "never", "Create a client…"]);
    let page = get(&rig, "/client/acme%2Fci", Some(&root)).await;
    shows(&page, &["queue:create-task:low:acme/*", "queue:claim-work:acme/*", "Disable…", "Created by local:"]);
    let page = get(&rig, "/role/team%3A%2A", Some(&root)).await;
    shows(&page, &["queue:claim-work:&lt;..&gt;/*", "&lt;script&gt;alert(1)", "Created by root"]);
    hides(&page, &["<script>", "<img"]);
    for path in ["/access", "/client/acme%2Fci", "/role/team%3A%2A"] {
        let reply = get(&rig, path, None).await;
        assert_eq!(reply.status, 403, "{path}: {}", reply.text());
        hides(&reply, &["acme/*"]);
    }
    let some = log_in(&rig, &rig.make_client("some", &["auth:list-roles", "auth:get-client:acme/*"]).await).await;
    let page = get(&rig, "/access", Some(&some)).await;
    shows(&page, &["team:*", "To see this you need <code>auth:list-clients</code>"]);
    hides(&page, &["acme/ci</a>"]);
    shows(&get(&rig, "/client/acme%2Fci", Some(&some)).await, &["queue:create-task:low:acme/*"]);
    assert_eq!(get(&rig, "/client/root", Some(&some)).await.status, 403);
    for path in ["/client/%22%3E%3Cscript%3E", "/role/%22%3E%3Cscript%3E"] {
        hides(&get(&rig, path, Some(&root)).await, &["<script>"]);
    }
    for (path, status) in
        [("/client/nobody", 404), ("/client/a%20b", 404), ("/role/nobody", 404), ("/role/a%2A%2A", 404)]
    {
        assert_eq!(get(&rig, path, Some(&root)).await.status, status, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_about_scopes_are_answered() {
    let rig = Rig::start().await;
    rig.make_client("acme/ci", &["assume:team:acme"]).await;
    rig.make_client("other", &["queue:claim-work:other/*"]).await;
    let role = json!({"description": "", "scopes": ["queue:claim-work:<..>/*"]});
    ok(rig.call("PUT", &format!("{AUTH_API}/roles/team%3A%2A"), Some(&role)).await);
    let root = log_in(&rig, &rig.root).await;
    let ask = async |query: &str| get(&rig, &format!("/access?{query}"), Some(&root)).await;
    let page = ask("scope=queue%3Aclaim-work%3Aacme%2Flinux").await;
    let way = "<code>assume:team:acme</code> → <code>queue:claim-work:acme/*</code>";
    shows(&page, &["2 of 3 clients", "/client/acme%2Fci", way, "/client/root"]);
    hides(&page, &["<code>queue:claim-work:other/*</code>"]);
    shows(&ask("scope=queue%3Astatus%3Ax").await, &["Everybody may"]);
    shows(&ask("client=acme%2Fci").await, &["With its roles", "<code>queue:claim-work:acme/*</code>"]);
    shows(&ask("client=acme%2Fci&scope=queue%3Aclaim-work%3Aacme%2Fmac").await, &["may.</b>", way]);
    shows(&ask("client=other&scope=queue%3Aclaim-work%3Aacme%2Fmac").await, &["No, <code>other</code> may not."]);
    shows(&ask("client=nobody").await, &["There is no client <code>nobody</code>."]);
    shows(&ask("client=a%20b").await, &["This is no client"]);
    shows(&ask("scope=%C3%A9").await, &["printable ASCII"]);
    let page = ask("client=%22%3E%3Cscript%3E&scope=%3Cimg%20src%3E&prefix=%3Cscript%3E").await;
    hides(&page, &["<script>", "<img"]);
    assert_eq!(ask("prefix=%00&afterClient=%00&afterRole=%00&scope=%00&client=%00").await.status, 200);
    let roles = log_in(&rig, &rig.make_client("roles", &["auth:list-roles"]).await).await;
    let page = get(&rig, "/access?scope=queue%3Aclaim-work%3Aacme%2Flinux", Some(&roles)).await;
    hides(&page, &["assume:team:acme", "2 of 3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_is_created_changed_and_deleted() {
    let rig = Rig::start().await;
    let root = Visitor::root(&rig).await;
    let create = [("clientId", "acme/ci"), ("description", "builds"), ("scopes", "queue:x:*\r\n\r\n a b \r\n")];
    let reply = root.send(&rig, "/access/create-client", &create).await;
    assert_eq!((reply.status, reply.header("set-cookie")), (200, None), "{}", reply.text());
    let first = token(&reply.text()).to_owned();
    let client = ok(rig.call("GET", &format!("{AUTH_API}/clients/acme%2Fci"), None).await);
    assert_eq!(client["scopes"], json!(["queue:x:*", "a b"]));
    assert_eq!(client["description"], "builds");
    // Sent again, as by a reload.
    assert_eq!(token(&root.send(&rig, "/access/create-client", &create).await.text()), first);
    let taken = root.send(&rig, "/access/create-client", &[("clientId", "acme/ci"), ("scopes", "other")]).await;
    assert_eq!(taken.status, 409, "{}", taken.text());
    shows(&root.get(&rig, "/client/acme%2Fci").await, &["Created by root"]);
    let (page, path) = ("/client/acme%2Fci".to_owned(), |action: &str| format!("/client/acme%2Fci/{action}"));
    let form = root.get(&rig, &path("change")).await;
    shows(&form, &["queue:x:*\na b</textarea>", "tenure client update acme/ci --scope SCOPE"]);
    let seen = hidden(&form, "lastModified");
    let change = [("lastModified", seen.as_str()), ("description", HOSTILE), ("scopes", "a b\nc")];
    assert_eq!(root.done(&rig, &path("change"), &change).await, (page.clone(), "The client is changed.".to_owned()));
    let shown = root.get(&rig, &page).await;
    shows(&shown, &["&lt;script&gt;alert(1)&lt;/script&gt;", "<h2>Changes</h2>"]);
    hides(&shown, &["<script>", "<img"]);
    hides(&root.get(&rig, &path("change")).await, &["<script>", "<img"]);
    let late = root.send(&rig, &path("change"), &change).await;
    assert!(late.status == 409 && late.text().contains("open it again"), "{}", late.text());
    assert_eq!(root.done(&rig, &path("disable"), &[]).await.1, "The client is disabled.");
    shows(&root.get(&rig, &page).await, &["The client is disabled", "<button type=\"submit\">Enable</button>"]);
    assert_eq!(root.done(&rig, &path("enable"), &[]).await.1, "The client is enabled.");
    let second = root.send(&rig, &path("reset-token"), &[]).await;
    assert_ne!(token(&second.text()), first);
    hides(&root.get(&rig, &page).await, &[token(&second.text())]);
    let (location, line) = root.done(&rig, &path("delete"), &[]).await;
    assert_eq!((location.as_str(), line.as_str()), ("/access", "Client acme/ci is deleted."));
    assert_eq!(root.get(&rig, &page).await.status, 404);
    let expected =
        ["deleteClient", "resetAccessToken", "enableClient", "disableClient", "updateClient", "createClient"];
    assert_eq!(audited(&rig, "acme%2Fci").await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn role_is_created_changed_and_deleted() {
    let rig = Rig::start().await;
    let root = Visitor::root(&rig).await;
    let create = [("roleId", "team:*"), ("description", ""), ("scopes", "x:<..>")];
    let page = "/role/team%3A%2A".to_owned();
    let (location, line) = root.done(&rig, "/access/create-role", &create).await;
    assert_eq!((&location, line.as_str()), (&page, "The role is created."));
    let form = root.get(&rig, &format!("{page}/change")).await;
    shows(&form, &["tenure role update 'team:*' --scope SCOPE"]);
    let seen = hidden(&form, "lastModified");
    let circle = [("lastModified", seen.as_str()), ("scopes", "assume:team:x")];
    let refused = root.send(&rig, &format!("{page}/change"), &circle).await;
    assert!(refused.status == 400 && refused.text().contains("cycle"), "{}", refused.text());
    let change = [("lastModified", seen.as_str()), ("scopes", "y")];
    assert_eq!(root.done(&rig, &format!("{page}/change"), &change).await.1, "The role is changed.");
    assert_eq!(root.done(&rig, &format!("{page}/delete"), &[]).await.1, "Role team:* is deleted.");
    assert_eq!(audited(&rig, "team%3A%2A").await, ["deleteRole", "updateRole", "createRole"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_own_scopes_can_be_granted() {
    let rig = Rig::start().await;
    let scopes = ["auth:create-client:acme/*", "auth:list-clients", "queue:claim-work:acme/*"];
    let chief = Visitor::new(&rig, "chief", &scopes).await;
    let page = chief.get(&rig, "/access").await;
    let role = "<button type=\"button\" disabled>Create a role…</button> needs <code>auth:create-role:*</code>";
    shows(&page, &["href=\"/access/create-client\"", role]);
    for (id, scope, missing) in [
        ("acme/a", "queue:claim-work:*", "queue:claim-work:*"),
        ("other/a", "queue:claim-work:acme/linux", "auth:create-client:other/a"),
    ] {
        let reply = chief.send(&rig, "/access/create-client", &[("clientId", id), ("scopes", scope)]).await;
        assert_eq!(reply.status, 403, "{}", reply.text());
        let text = reply.text();
        assert!(text.contains(&format!("This needs {missing}, which you do not have.")), "{text}");
        assert!(text.contains(&format!("value=\"{id}\"")), "the input is kept: {text}");
    }
    let fields = [("clientId", "acme/a"), ("scopes", "queue:claim-work:acme/linux")];
    token(&chief.send(&rig, "/access/create-client", &fields).await.text());
    for (fields, field) in [
        ([("clientId", "a b"), ("scopes", "")], "clientId"),
        ([("clientId", "acme/b"), ("scopes", "a**")], "scopes"),
        ([("clientId", "acme/b"), ("expires", "soon")], "expires"),
    ] {
        let reply = chief.send(&rig, "/access/create-client", &fields).await;
        assert_eq!(reply.status, 400, "{field}: {}", reply.text());
        assert!(reply.text().contains(&format!("<code>{field}</code>")), "{}", reply.text());
        assert!(reply.text().contains("aria-invalid=\"true\""), "{}", reply.text());
    }
    let unknown = ok(rig.call("GET", &format!("{AUTH_API}/clients/?prefix=acme%2F"), None).await);
    assert_eq!(unknown["clients"].as_array().unwrap().len(), 1);
}
