//! The Taskcluster Auth API, as far as there is one, described.

use serde_json::{Value, json};
use tenure_api::auth::{
    AuthenticateHawkRequest, Authentication, Client, ClientRequest, Role, RoleRequest, Scopes, TestAuthenticateRequest,
    TestAuthenticateResponse,
};
use tenure_api::errors::ErrorCode::{
    AuthenticationFailed, InputError, InsufficientScopes, InvalidRequestArguments, RequestConflict, ResourceNotFound,
};

use super::operation::{self, Operation};
use super::parameters::{self, paged};
use super::sample::Sample;

const UNKNOWN_ARGUMENT: &str = "a parameter of the query, which has none";
const NO_CLIENT: &str = "there is no such client";
const NO_ROLE: &str = "there is no such role";

/// Every operation.
pub(super) fn operations(sample: &Sample) -> Vec<Operation> {
    [clients(sample), client_switches(sample), roles(sample), role_lists(sample), scopes(sample), tests()].concat()
}

fn operation(name: &'static str, summary: &'static str) -> Operation {
    operation::operation("auth", name, summary)
}

fn new_client(sample: &Sample) -> Value {
    json!({"description": "Submits tasks.", "expires": sample.after(90 * 24 * 60), "scopes": ["queue:create-task:*"]})
}

fn a_client(sample: &Sample) -> Value {
    let mut client = new_client(sample);
    client["clientId"] = "ci".into();
    for field in ["created", "lastModified", "lastDateUsed", "lastRotated"] {
        client[field] = sample.after(0);
    }
    client["deleteOnExpiration"] = false.into();
    client["disabled"] = false.into();
    client["expandedScopes"] = json!(["assume:client-id:ci", "queue:create-task:*"]);
    client
}

fn with_token(sample: &Sample) -> Value {
    let mut client = a_client(sample);
    client["accessToken"] = "three-dozen-characters-that-nobody-else-knows".into();
    client
}

/// The scope of an operation, and each of those that it hands out.
fn handing_out(scope: &str) -> Value {
    json!({"AllOf": [scope, {"for": "scope", "in": "scopesThatAreNew", "each": "<scope>"}]})
}

fn clients(sample: &Sample) -> Vec<Operation> {
    let changing = "The caller needs every scope that the client gets and did not have.";
    vec![
        paged(operation("listClients", "List clients"))
            .scopes("auth:list-clients")
            .query("prefix", "Only clients whose ids begin with this", &parameters::client_prefix(), &Value::Null)
            .answers_with(
                200,
                "A page, in the order of the ids; with a token if there are more",
                "application/json",
                &page("clients", &json!({"$ref": "#/components/schemas/Client"})),
                &json!({"clients": [a_client(sample)]}),
            ),
        operation("client", "Show a client")
            .scopes("auth:get-client:<clientId>")
            .answers::<Client<'_>>("The client; its token is not shown", &a_client(sample))
            .refuses(ResourceNotFound, NO_CLIENT),
        operation("createClient", "Create a client")
            .about(&format!(
                "{changing} The answer is the only one with the token: keep it. Sent again within 15 minutes, the same \
                 request is answered with the same token."
            ))
            .scopes(handing_out("auth:create-client:<clientId>"))
            .takes::<ClientRequest>(&new_client(sample))
            .names(&[("clientId", "$response.body#/clientId")])
            .answers::<Client<'_>>("The client with its token", &with_token(sample))
            .refuses(RequestConflict, "there is a client of this name, with another definition or for longer"),
        operation("updateClient", "Change a client")
            .about(&format!("{changing} Without `scopes` they stay as they are. The token stays in any case."))
            .scopes(handing_out("auth:update-client:<clientId>"))
            .takes::<ClientRequest>(&new_client(sample))
            .answers::<Client<'_>>("The client", &a_client(sample))
            .refuses(ResourceNotFound, NO_CLIENT)
            .refuses(RequestConflict, "somebody else changed the client at the same time"),
        operation("deleteClient", "Delete a client")
            .about("Whether there is one or not.")
            .scopes("auth:delete-client:<clientId>")
            .answers_empty(204, "There is no such client any more", &[]),
    ]
}

fn client_switches(sample: &Sample) -> Vec<Operation> {
    vec![
        operation("resetAccessToken", "Give a client a new token")
            .about("The old one is refused from now on. The answer is the only one with the new one.")
            .scopes("auth:reset-access-token:<clientId>")
            .answers::<Client<'_>>("The client with its new token", &with_token(sample))
            .refuses(ResourceNotFound, NO_CLIENT),
        operation("enableClient", "Let a client in again")
            .scopes("auth:enable-client:<clientId>")
            .answers::<Client<'_>>("The client", &a_client(sample))
            .refuses(ResourceNotFound, NO_CLIENT),
        operation("disableClient", "Refuse a client for now")
            .scopes("auth:disable-client:<clientId>")
            .answers::<Client<'_>>("The client", &{
                let mut client = a_client(sample);
                client["disabled"] = true.into();
                client
            })
            .refuses(ResourceNotFound, NO_CLIENT),
    ]
}

fn new_role() -> Value {
    json!({"description": "What submitters may do.", "scopes": ["queue:create-task:*"]})
}

fn a_role(sample: &Sample) -> Value {
    let mut role = new_role();
    role["roleId"] = "submitter".into();
    role["created"] = sample.after(0);
    role["lastModified"] = sample.after(0);
    role["expandedScopes"] = json!(["assume:submitter", "queue:create-task:*"]);
    role
}

fn roles(sample: &Sample) -> Vec<Operation> {
    let circle = "roles would assume each other in a circle";
    let changing = "The caller needs every scope that the role gets and did not have.";
    vec![
        operation("role", "Show a role")
            .scopes("auth:get-role:<roleId>")
            .answers::<Role<'_>>("The role", &a_role(sample))
            .refuses(ResourceNotFound, NO_ROLE),
        operation("createRole", "Create a role")
            .about(&format!(
                "{changing} A role whose id ends in `*` is for every id that begins so. Sent again, the same request is \
                 answered with the role."
            ))
            .scopes(handing_out("auth:create-role:<roleId>"))
            .takes::<RoleRequest>(&new_role())
            .names(&[("roleId", "$response.body#/roleId")])
            .answers::<Role<'_>>("The role", &a_role(sample))
            .refuses(InputError, circle)
            .refuses(RequestConflict, "there is a role of this name with another definition"),
        operation("updateRole", "Change a role")
            .about(changing)
            .scopes(handing_out("auth:update-role:<roleId>"))
            .takes::<RoleRequest>(&new_role())
            .answers::<Role<'_>>("The role", &a_role(sample))
            .refuses(InputError, circle)
            .refuses(ResourceNotFound, NO_ROLE)
            .refuses(RequestConflict, "somebody else changed the role at the same time"),
        operation("deleteRole", "Delete a role")
            .about("Whether there is one or not.")
            .scopes("auth:delete-role:<roleId>")
            .answers_empty(204, "There is no such role any more", &[]),
    ]
}

fn role_lists(sample: &Sample) -> Vec<Operation> {
    let role = json!({"$ref": "#/components/schemas/Role"});
    let list = |name, summary| operation(name, summary).scopes("auth:list-roles");
    let json = "application/json";
    vec![
        list("listRoles", "List all roles").about("listRoles2 has pages.").answers_with(
            200,
            "Every role",
            json,
            &json!({"type": "array", "items": role}),
            &json!([a_role(sample)]),
        ),
        paged(list("listRoles2", "List roles")).answers_with(
            200,
            "A page; without `limit` all of them",
            json,
            &page("roles", &role),
            &json!({"roles": [a_role(sample)]}),
        ),
        paged(list("listRoleIds", "List the ids of roles")).answers_with(
            200,
            "A page; without `limit` all of them",
            json,
            &page("roleIds", &json!({"type": "string"})),
            &json!({"roleIds": ["submitter"]}),
        ),
    ]
}

fn scopes(sample: &Sample) -> Vec<Operation> {
    vec![
        operation("expandScopes", "Follow the roles in a set of scopes")
            .scopes("auth:expand-scopes")
            .takes::<Scopes>(&json!({"scopes": ["assume:submitter"]}))
            .answers::<Scopes>("What it amounts to", &json!({"scopes": ["assume:submitter", "queue:create-task:*"]}))
            .refuses(InputError, "it amounts to too many scopes"),
        operation("currentScopes", "What the caller may do")
            .scopes("auth:current-scopes")
            .answers::<Scopes>("The scopes, expanded", &json!({"scopes": ["queue:create-task:*"]})),
        operation::open("auth", "authenticateHawk", "Find out who sent a request to another service")
            .about("For services that trust this one's clients. The service itself checks the hash of the body.")
            .takes::<AuthenticateHawkRequest>(&json!({
                "method": "GET",
                "resource": "/some/path?x=1",
                "host": "service.example.com",
                "port": 443,
            }))
            .answers::<Authentication<'_>>(
                "Whether the signature is good, and what its maker may do",
                &json!({"status": "no-auth", "scheme": "none", "scopes": [], "expires": sample.after(15)}),
            )
            .refuses(InvalidRequestArguments, UNKNOWN_ARGUMENT),
    ]
}

fn tests() -> Vec<Operation> {
    let test = |name, summary| {
        operation::open("auth", name, summary)
            .refuses(InvalidRequestArguments, UNKNOWN_ARGUMENT)
            .refuses(AuthenticationFailed, "the request is not signed by `tester`")
            .refuses(InsufficientScopes, "the request needs more than `tester` has")
    };
    vec![
        test("testAuthenticate", "Try out a client's signatures")
            .about("Sign it as the client `tester` with the access token `no-secret`.")
            .takes::<TestAuthenticateRequest>(&json!({"clientScopes": ["test:*"], "requiredScopes": []}))
            .answers::<TestAuthenticateResponse<'_>>(
                "The signature is good",
                &json!({"clientId": "tester", "scopes": ["test:*"]}),
            ),
        test("testAuthenticateGet", "Try out a client's signatures on requests without a body")
            .about("As testAuthenticate; the client `tester` has `test:*` and `auth:create-client:test:*`.")
            .answers::<TestAuthenticateResponse<'_>>(
                "The signature is good",
                &json!({"clientId": "tester", "scopes": ["auth:create-client:test:*", "test:*"]}),
            ),
    ]
}

fn page(field: &str, items: &Value) -> Value {
    let token = json!({"type": "string", "description": "For the next page; absent on the last one"});
    json!({
        "type": "object",
        "required": [field],
        "properties": {field: {"type": "array", "items": items}, "continuationToken": token},
    })
}
