//! authenticateHawk.

use tenure_api::auth::{AuthenticateHawkRequest, Authentication};
use tenure_api::errors::ErrorCode::InvalidRequestArguments;
use tenure_api::hawk::Header;

use crate::auth::{AuthError, RequestParts};
use crate::http::api::clients::{NEVER_MS, timestamp};
use crate::http::api::prelude::*;
use crate::http::docs::parameters::UNKNOWN_ARGUMENT;

/// How long a service may rely on the scopes of anonymous callers.
const NO_AUTH_MS: i64 = 15 * 60 * 1000;

/// Authenticates a request to another service, which keeps its body and checks the hash.
pub fn endpoint() -> Endpoint {
    Endpoint::post("authenticateHawk", authenticate_hawk).no_pool().secret_body().others_head().described(
        "auth",
        "Authenticate a request that another service received",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about("For services that trust this server's clients. The service itself must check the hash of the body.")
        .takes::<AuthenticateHawkRequest>(&json!({
            "method": "GET",
            "resource": "/some/path?x=1",
            "host": "service.example.com",
            "port": 443,
        }))
        .answers::<Authentication<'_>>(
            "The result of the check, with the sender's scopes",
            &json!({"status": "no-auth", "scheme": "none", "scopes": [], "expires": sample.after(15)}),
        )
        .refuses(InvalidRequestArguments, UNKNOWN_ARGUMENT)
}

async fn authenticate_hawk(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let request: AuthenticateHawkRequest = call.json()?;
    let port = request.port.to_string();
    let request = RequestParts {
        method: &request.method,
        target: &request.resource,
        host: &request.host,
        forwarded_port: Some(&port),
        authorization: request.authorization.as_deref(),
        body_is_elsewhere: true,
        ..RequestParts::default()
    };
    let now = app.intake.now().await?;
    // A plain token proves nothing about a request.
    let header = match request.authorization.map(Header::parse).transpose() {
        Ok(header) => header,
        Err(error) => return ok(&Authentication::AuthFailed { message: error.to_string() }),
    };
    let principal = match app.intake.authenticate(&request, now).await {
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
