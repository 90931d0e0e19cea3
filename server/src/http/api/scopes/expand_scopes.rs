//! expandScopes.

use tenure_api::auth::Scopes;

use tenure_domain::roles::check_scopes;

use crate::http::api::prelude::*;

/// `POST /scopes/expand`
pub fn endpoint() -> Endpoint {
    Endpoint::post("expandScopes", expand_scopes)
        .no_pool()
        .scopes(Scope("auth:expand-scopes"))
        .early_check(Call::authorize_by_path)
        .large_answer()
        .described("auth", "Expand the roles in a set of scopes", describe)
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation
        .takes::<Scopes>(&json!({"scopes": ["assume:submitter"]}))
        .answers::<Scopes>("The expanded scopes", &json!({"scopes": ["assume:submitter", "queue:create-task:*"]}))
        .refuses(InputError, "the scopes expand to too many")
}

async fn expand_scopes(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let Scopes { scopes } = call.json()?;
    check_scopes(&scopes).map_err(ApiError::body)?;
    let expanded = app.intake.authenticator.roles().await?.resolve(scopes);
    let expanded = expanded.map_err(|error| ApiError::new(ErrorCode::InputError, error.to_string()))?;
    ok(&Scopes { scopes: expanded.iter().map(str::to_owned).collect() })
}
