//! testAuthenticate, testAuthenticateGet.

use tenure_api::auth::{TestAuthenticateRequest, TestAuthenticateResponse};
use tenure_api::errors::ErrorCode::{AuthenticationFailed, InsufficientScopes, InvalidRequestArguments};

use crate::auth::{Principal, Tester};
use crate::http::api::prelude::*;
use crate::http::docs::parameters::UNKNOWN_ARGUMENT;
use tenure_domain::roles::check_scopes;
use tenure_domain::scopes::Expression;

/// Scopes of `tester` if the request cannot state them.
const TESTER_SCOPES: [&str; 2] = ["test:*", "auth:create-client:test:*"];

const TESTER_REQUIRED: &str = "test:authenticate-get";

/// The only client is `tester` with the token `no-secret`.
pub fn with_body() -> Endpoint {
    Endpoint::post("testAuthenticate", test_authenticate).no_pool().described(
        "auth",
        "Test a client's signatures",
        |operation, _| {
            described(operation)
                .about("Sign it as the client `tester` with the access token `no-secret`.")
                .takes::<TestAuthenticateRequest>(&json!({"clientScopes": ["test:*"], "requiredScopes": []}))
                .answers::<TestAuthenticateResponse<'_>>(
                    "The signature is valid",
                    &json!({"clientId": "tester", "scopes": ["test:*"]}),
                )
        },
    )
}

/// Also for signed URLs.
pub fn without_body() -> Endpoint {
    Endpoint::get("testAuthenticateGet", test_authenticate_get).no_pool().described(
        "auth",
        "Test a client's signatures of requests without a body",
        |operation, _| {
            described(operation)
                .about("As testAuthenticate; the client `tester` has `test:*` and `auth:create-client:test:*`.")
                .answers::<TestAuthenticateResponse<'_>>(
                    "The signature is valid",
                    &json!({"clientId": "tester", "scopes": ["auth:create-client:test:*", "test:*"]}),
                )
        },
    )
}

fn described(operation: Operation) -> Operation {
    operation
        .refuses(InvalidRequestArguments, UNKNOWN_ARGUMENT)
        .refuses(AuthenticationFailed, "the request is not signed by `tester`")
        .refuses(InsufficientScopes, "the request needs more than `tester` has")
}

async fn test_authenticate(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let TestAuthenticateRequest { client_scopes, required_scopes } = call.json()?;
    check_scopes(&client_scopes).map_err(ApiError::body)?;
    check_scopes(&required_scopes).map_err(ApiError::body)?;
    if client_scopes.len() * required_scopes.len() > PAIRS_MAX {
        return Err(ApiError::body(format!(
            "`clientScopes` and `requiredScopes` are too many: their numbers may have a product of {PAIRS_MAX} at most"
        )));
    }
    test(&app, &call, client_scopes, required_scopes).await
}

async fn test_authenticate_get(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    test(&app, &call, TESTER_SCOPES.map(str::to_owned).to_vec(), vec![TESTER_REQUIRED.to_owned()]).await
}

/// Limits the comparisons, because anyone may call this.
const PAIRS_MAX: usize = 1_000_000;

async fn test(app: &Api, call: &Call, client_scopes: Vec<String>, required: Vec<String>) -> Result<Response, ApiError> {
    let principal: Principal =
        Tester::new(client_scopes).authenticate(&call.request_parts(), app.intake.now().await?)?;
    principal.authorize(&Expression::all_of(required))?;
    // A request without required scopes may be anonymous.
    let client_id = principal.client_id.as_deref().unwrap_or_default();
    ok(&TestAuthenticateResponse { client_id, scopes: principal.scopes.iter().collect() })
}
