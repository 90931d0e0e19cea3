//! Clients, roles, scopes.

use serde_json::json;
use tenure_api::errors::ErrorCode::{
    AuthenticationFailed, InputError, InputValidationError, InsufficientScopes, RequestConflict, ResourceNotFound,
};

use crate::endpoints::row::{OperationRows, State, Who, operation, refused, succeeds};

pub fn entries() -> Vec<OperationRows> {
    [clients(), roles(), scopes()].concat()
}

fn clients() -> Vec<OperationRows> {
    let client = json!({"description": "d", "expires": "<expires>", "scopes": ["a:b"]});
    let bad_scope = json!({"description": "d", "expires": "<expires>", "scopes": ["a**"]});
    let of_one = |name| operation(name, State::Client).row(refused(ResourceNotFound, "there is no such client"));
    vec![
        operation("listClients", State::Client).row(
            succeeds("those that begin so")
                .on(State::Client)
                .query("prefix=<clientId>&limit=1")
                .gives("/clients/0/clientId", "<clientId>"),
        ),
        of_one("client").gives("/clientId", "<clientId>").gives("/accessToken", serde_json::Value::Null),
        operation("createClient", State::Nothing)
            .takes(client.clone())
            .gives("/scopes", json!(["a:b"]))
            .gives("/disabled", false)
            .row(refused(InputValidationError, "a scope that ends in `**`").body(bad_scope.clone()))
            .row(refused(RequestConflict, "there is a client of this name").on(State::Client)),
        of_one("updateClient")
            .takes(client)
            .gives("/scopes", json!(["a:b"]))
            .gives("/description", "d")
            .row(refused(InputValidationError, "a scope that ends in `**`").on(State::Client).body(bad_scope))
            .elsewhere(RequestConflict, "an_update_of_a_client_that_meets_another_is_refused"),
        operation("deleteClient", State::Client).row(succeeds("there is no such client")),
        of_one("resetAccessToken").gives("/clientId", "<clientId>"),
        of_one("enableClient").gives("/disabled", false),
        of_one("disableClient").gives("/disabled", true),
    ]
}

fn roles() -> Vec<OperationRows> {
    let role = json!({"description": "d", "scopes": ["a:b"]});
    let circle = json!({"description": "d", "scopes": ["assume:<roleId>"]});
    vec![
        operation("listRoles", State::Role),
        operation("listRoles2", State::Role).row(succeeds("a page").query("limit=1").gives("/roles/1", json!(null))),
        operation("listRoleIds", State::Role).row(succeeds("a page").query("limit=1").gives("/roleIds/1", json!(null))),
        operation("role", State::Role)
            .gives("/roleId", "<roleId>")
            .gives("/expandedScopes", json!(["assume:<roleId>"]))
            .row(refused(ResourceNotFound, "there is no such role")),
        operation("createRole", State::Nothing)
            .takes(role.clone())
            .gives("/scopes", json!(["a:b"]))
            .row(succeeds("the same role again").on(State::Role).body(json!({"description": "", "scopes": []})))
            .row(refused(InputError, "a role that assumes itself").body(circle.clone()))
            .row(refused(RequestConflict, "there is another role of this name").on(State::Role)),
        operation("updateRole", State::Role)
            .takes(role)
            .gives("/scopes", json!(["a:b"]))
            .row(refused(InputError, "a role that assumes itself").on(State::Role).body(circle))
            .row(refused(ResourceNotFound, "there is no such role"))
            .elsewhere(RequestConflict, "an_update_of_a_role_that_meets_another_is_refused"),
        operation("deleteRole", State::Role).row(succeeds("there is no such role")),
    ]
}

fn scopes() -> Vec<OperationRows> {
    let request = json!({"method": "GET", "resource": "/x", "host": "example.com", "port": 443});
    let mut signed = request.clone();
    signed["authorization"] = "Hawk id=\"nobody\", ts=\"1\", nonce=\"a\", mac=\"b\"".into();
    let trying = json!({"clientScopes": ["test:*"], "requiredScopes": ["test:x"]});
    let too_much = json!({"clientScopes": ["test:*"], "requiredScopes": ["other"]});
    vec![
        operation("expandScopes", State::Role)
            .takes(json!({"scopes": ["assume:<roleId>", "a:b"]}))
            .gives("/scopes", json!(["a:b", "assume:<roleId>"]))
            .row(refused(InputValidationError, "a scope that ends in `**`").body(json!({"scopes": ["a**"]})))
            .elsewhere(InputError, "scopes_that_amount_to_too_much_are_refused"),
        operation("currentScopes", State::Nothing),
        operation("authenticateHawk", State::Nothing)
            .by(Who::Anonymous)
            .takes(request)
            .gives("/status", "no-auth")
            .row(succeeds("a wrong signature").by(Who::Anonymous).body(signed).gives("/status", "auth-failed")),
        operation("testAuthenticate", State::Nothing)
            .by(Who::Tester)
            .takes(trying)
            .gives("/clientId", "tester")
            .row(refused(AuthenticationFailed, "another client"))
            .row(refused(InsufficientScopes, "more than it has").by(Who::Tester).body(too_much)),
        operation("testAuthenticateGet", State::Nothing)
            .by(Who::Tester)
            .gives("/clientId", "tester")
            .row(refused(AuthenticationFailed, "another client"))
            .row(refused(InsufficientScopes, "no signature, and so nothing").by(Who::Anonymous)),
    ]
}
