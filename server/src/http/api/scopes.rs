//! What scopes and credentials amount to: for callers themselves, for other services, and for tests of clients.

use std::sync::Arc;

use axum::response::Response;
use tenure_api::auth::{
    AuthenticateHawkRequest, Authentication, Scopes, TestAuthenticateRequest, TestAuthenticateResponse,
};
use tenure_api::errors::ErrorCode;
use tenure_api::hawk::Header;

use super::clients::{NEVER_MS, timestamp};
use super::ok;
use crate::auth::{AuthError, Principal, RequestParts, Tester};
use crate::domain::roles::check_scopes;
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;

/// For how long a service may rely on what everybody may do.
const NO_AUTH_MS: i64 = 15 * 60 * 1000;
/// What the client `tester` has where the request cannot say so.
const TESTER_SCOPES: [&str; 2] = ["test:*", "auth:create-client:test:*"];
/// What testAuthenticateGet needs.
const TESTER_REQUIRED: &str = "test:authenticate-get";

/// `POST /scopes/expand`
pub async fn expand_scopes(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    may_expand(&call)?;
    call.no_query()?;
    let Scopes { scopes } = call.json()?;
    check_scopes(&scopes).map_err(ApiError::body)?;
    let expanded = app.authenticator.roles().await?.resolve(scopes);
    let expanded = expanded.map_err(|error| ApiError::new(ErrorCode::InputError, error.to_string()))?;
    ok(&Scopes { scopes: expanded.iter().map(str::to_owned).collect() })
}

/// What expandScopes requires.
pub fn may_expand(call: &Call) -> Result<(), ApiError> {
    call.authorize(&Expression::from("auth:expand-scopes"))
}

/// `GET /scopes/current`
pub async fn current_scopes(_: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Expression::from("auth:current-scopes"))?;
    call.no_query()?;
    ok(&Scopes { scopes: call.principal()?.scopes.iter().map(str::to_owned).collect() })
}

/// `POST /authenticate-hawk`: another service asks who sent it a request. The body of that request stays there, and so
/// does the check of its hash.
pub async fn authenticate_hawk(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let asked: AuthenticateHawkRequest = call.json()?;
    let port = asked.port.to_string();
    let request = RequestParts {
        method: &asked.method,
        target: &asked.resource,
        host: &asked.host,
        forwarded_port: Some(&port),
        authorization: asked.authorization.as_deref(),
        body_is_elsewhere: true,
        ..RequestParts::default()
    };
    let now = app.now().await?;
    // A token that is sent as it is proves nothing about a request, so Basic is not for other services.
    let header = match request.authorization.map(Header::parse).transpose() {
        Ok(header) => header,
        Err(error) => return ok(&Authentication::AuthFailed { message: error.to_string() }),
    };
    let principal = match app.authenticator.authenticate(&request, now).await {
        Ok(principal) => principal,
        Err(AuthError::Failure(failure)) => return ok(&Authentication::AuthFailed { message: failure.to_string() }),
        Err(error) => return Err(error.into()),
    };
    let scopes = principal.scopes.iter().collect();
    let until = |ms| timestamp(ms).or_else(|| timestamp(NEVER_MS));
    let missing = || ApiError::internal("there is no such time");
    match &principal.client_id {
        None => {
            let expires = until(now.server_ms.saturating_add(NO_AUTH_MS)).ok_or_else(missing)?;
            ok(&Authentication::NoAuth { scheme: "none", scopes, expires })
        }
        Some(client_id) => {
            let expires = until(principal.expires_ms.unwrap_or(NEVER_MS)).ok_or_else(missing)?;
            let hash = header.and_then(|header| header.hash);
            ok(&Authentication::AuthSuccess { scheme: "hawk", client_id, scopes, expires, hash })
        }
    }
}

/// `POST /test-authenticate`: the request itself is the test. Its only client is `tester` with the token `no-secret`.
pub async fn test_authenticate(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let TestAuthenticateRequest { client_scopes, required_scopes } = call.json()?;
    check_scopes(&client_scopes).map_err(ApiError::body)?;
    check_scopes(&required_scopes).map_err(ApiError::body)?;
    test(&app, &call, client_scopes, required_scopes).await
}

/// `GET /test-authenticate-get/`: the same for requests without a body, and for signed URLs.
pub async fn test_authenticate_get(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    test(&app, &call, TESTER_SCOPES.map(str::to_owned).to_vec(), vec![TESTER_REQUIRED.to_owned()]).await
}

async fn test(app: &App, call: &Call, held: Vec<String>, required: Vec<String>) -> Result<Response, ApiError> {
    let principal: Principal = Tester::new(held).authenticate(&call.request_parts(), app.now().await?)?;
    principal.authorize(&Expression::all_of(required))?;
    // Whoever needs nothing need not be anybody.
    let client_id = principal.client_id.as_deref().unwrap_or_default();
    ok(&TestAuthenticateResponse { client_id, scopes: principal.scopes.iter().collect() })
}
