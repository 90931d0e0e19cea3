//! Schemas of the types that write themselves, for the OpenAPI document.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{KnownFormat, Object, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::credentials::AccessToken;

fn of_type(schema_type: Type, description: &str, example: serde_json::Value) -> ObjectBuilder {
    Object::builder().schema_type(schema_type).description(Some(description)).examples([example])
}

/// A text that matches a pattern.
pub(crate) fn text(description: &str, pattern: &str, example: &str) -> RefOr<Schema> {
    of_type(Type::String, description, example.into()).pattern(Some(pattern)).into()
}

/// One of some words.
pub(crate) fn words<const N: usize>(description: &str, words: [&'static str; N]) -> RefOr<Schema> {
    Object::builder().schema_type(Type::String).description(Some(description)).enum_values(Some(words)).into()
}

/// A moment.
pub(crate) fn moment(description: &str, example: &str) -> RefOr<Schema> {
    let format = SchemaFormat::KnownFormat(KnownFormat::DateTime);
    of_type(Type::String, description, example.into()).format(Some(format)).into()
}

/// A whole number from 0 on.
pub(crate) fn number(description: &str, max: u16) -> RefOr<Schema> {
    of_type(Type::Integer, description, 0.into()).minimum(Some(0)).maximum(Some(max)).into()
}

impl PartialSchema for AccessToken {
    fn schema() -> RefOr<Schema> {
        let example = "three-dozen-characters-that-nobody-else-knows";
        of_type(Type::String, "The secret that proves who a client is.", example.into()).into()
    }
}

impl ToSchema for AccessToken {}
