//! References and schemas in Taskcluster's forms.

use std::sync::Arc;

use axum::response::Response;
use tenure_api::errors::ErrorCode;

use crate::http::app::App;
use crate::http::call::Call;
use crate::http::docs::References;
use crate::http::error::ApiError;
use crate::http::files::{File, Files, Life};

/// `GET /references/manifest.json`
pub async fn manifest(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    find(&app, &call, "/references/manifest.json".to_owned()).await
}

/// `GET /references/:service/v1/:reference`
pub async fn reference(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let path = format!("/references/{}/v1/{}", call.text_param("service"), call.text_param("reference"));
    find(&app, &call, path).await
}

/// `GET /schemas/:service/v1/:schema`
pub async fn schema(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let path = format!("/schemas/{}/v1/{}", call.text_param("service"), call.text_param("schema"));
    find(&app, &call, path).await
}

/// `GET /schemas/common/:common`
pub async fn common_schema(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    find(&app, &call, format!("/schemas/common/{}", call.text_param("common"))).await
}

async fn find(app: &App, call: &Call, path: String) -> Result<Response, ApiError> {
    call.no_query()?;
    let (server, name) = (Arc::clone(app), path.clone());
    let make = move || {
        let references = server.references.get_or_init(|| References::new(&server.root_url));
        Ok(references.find(&name).map(|text| File::new("application/json", text.to_owned())))
    };
    let file = Files::get(app, path.clone(), Life::Forever, make).await?.ok_or_else(|| {
        let message = format!("there is no {path:?}; /references/manifest.json says what there is");
        ApiError::new(ErrorCode::ResourceNotFound, message)
    })?;
    Ok(file.response())
}
