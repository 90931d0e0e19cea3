//! What the fields of a createTask body must be, each by itself.

use std::collections::HashSet;

use tenure_api::bodies::{CreateTaskRequest, Metadata};

use super::{
    DEPENDENCIES_MAX, METADATA_DESCRIPTION_MAX, METADATA_SHORT_MAX, METADATA_SOURCE_MAX, RETRIES_MAX, ROUTE_CHARS_MAX,
    ROUTES_MAX, TAG_CHARS_MAX,
};

/// Checks what a schema of JSON could say.
pub(super) fn check(request: &CreateTaskRequest<'_>) -> Result<(), String> {
    if request.dependencies.len() > DEPENDENCIES_MAX {
        return Err(format!("`dependencies` has {} items; at most {DEPENDENCIES_MAX}", request.dependencies.len()));
    }
    unique("dependencies", &request.dependencies)?;
    if request.routes.len() > ROUTES_MAX {
        return Err(format!("`routes` has {} items; at most {ROUTES_MAX}", request.routes.len()));
    }
    unique("routes", &request.routes)?;
    for (n, route) in request.routes.iter().enumerate() {
        let field = format!("routes[{n}]");
        length(&field, route, 1, ROUTE_CHARS_MAX)?;
        storable(&field, route)?;
    }
    if request.retries.is_some_and(|retries| retries > RETRIES_MAX) {
        return Err(format!("`retries` must be from 0 to {RETRIES_MAX}"));
    }
    crate::scopes::check_of_task(&request.scopes)?;
    for (field, value) in [("payload", Some(request.payload)), ("extra", request.extra)] {
        if value.is_some_and(|value| !value.get().trim_start().starts_with('{')) {
            return Err(format!("`{field}` must be an object"));
        }
    }
    check_metadata(&request.metadata)?;
    for (name, value) in &request.tags {
        length(&format!("tags[{name:?}]"), value, 0, TAG_CHARS_MAX)?;
    }
    Ok(())
}

fn check_metadata(metadata: &Metadata) -> Result<(), String> {
    length("metadata.name", &metadata.name, 0, METADATA_SHORT_MAX)?;
    length("metadata.description", &metadata.description, 0, METADATA_DESCRIPTION_MAX)?;
    length("metadata.owner", &metadata.owner, 0, METADATA_SHORT_MAX)?;
    length("metadata.source", &metadata.source, 0, METADATA_SOURCE_MAX)?;
    let schemes = ["http://", "https://", "ssh://", "git@"];
    if !schemes.iter().any(|scheme| metadata.source.starts_with(scheme)) {
        return Err("`metadata.source` must match ^(https?://|ssh://|git@)".into());
    }
    Ok(())
}

fn length(field: &str, text: &str, least: usize, most: usize) -> Result<(), String> {
    // A text has at most as many characters as bytes, so that short ones need no count.
    let short_enough = text.len() <= most || text.chars().count() <= most;
    if text.len() < least || !short_enough {
        return Err(format!("`{field}` must have from {least} to {most} characters"));
    }
    Ok(())
}

/// A text column cannot hold the character U+0000.
fn storable(field: &str, text: &str) -> Result<(), String> {
    if text.contains('\0') {
        return Err(format!("`{field}` must not contain the character U+0000"));
    }
    Ok(())
}

fn unique<T: Eq + std::hash::Hash + std::fmt::Display>(field: &str, items: &[T]) -> Result<(), String> {
    let mut seen = HashSet::with_capacity(items.len());
    match items.iter().find(|item| !seen.insert(*item)) {
        Some(twice) => Err(format!("`{field}` contains {twice} twice")),
        None => Ok(()),
    }
}
