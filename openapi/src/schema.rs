//! Schemas of types with handwritten serialization.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{KnownFormat, Object, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

pub(crate) fn of_type(schema_type: Type, description: &str, example: serde_json::Value) -> ObjectBuilder {
    Object::builder().schema_type(schema_type).description(Some(description)).examples([example])
}

pub(crate) fn text(description: &str, pattern: &str, example: &str) -> RefOr<Schema> {
    of_type(Type::String, description, example.into()).pattern(Some(pattern)).into()
}

pub(crate) fn words<const N: usize>(description: &str, words: [&'static str; N]) -> RefOr<Schema> {
    Object::builder().schema_type(Type::String).description(Some(description)).enum_values(Some(words)).into()
}

pub(crate) fn date_time(description: &str, example: &str) -> RefOr<Schema> {
    let format = SchemaFormat::KnownFormat(KnownFormat::DateTime);
    of_type(Type::String, description, example.into()).format(Some(format)).into()
}

/// A whole number from 0.
pub(crate) fn number(description: &str, max: u16) -> RefOr<Schema> {
    of_type(Type::Integer, description, 0.into()).minimum(Some(0)).maximum(Some(max)).into()
}

/// Adds a required field to each object of a `oneOf`.
pub(crate) fn with_field(choice: RefOr<Schema>, description: &str, name: &str, field: &RefOr<Schema>) -> RefOr<Schema> {
    let RefOr::T(Schema::OneOf(mut choice)) = choice else { return choice };
    choice.description = Some(description.to_owned());
    for item in &mut choice.items {
        if let RefOr::T(Schema::Object(object)) = item {
            object.properties.insert(name.to_owned(), field.clone());
            object.required.push(name.to_owned());
        }
    }
    RefOr::T(Schema::OneOf(choice))
}

/// Implements deserialization and the schema of an enum of words.
macro_rules! word_enum {
    ($name:ident, $description:expr, $($variant:ident $word:literal),+) => {
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                crate::schema::words($description.trim(), [$($word),+])
            }
        }

        impl utoipa::ToSchema for $name {}

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                crate::text::word(deserializer, &[$($word),+], |found| match found {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                })
            }
        }
    };
}
pub(crate) use word_enum;

/// Defines a type for the document only. It adds the limits that the plain string of a field does
/// not show.
macro_rules! described_text {
    ($name:ident, $description:literal, $example:literal, $limit:expr) => {
        pub(crate) struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let limit: fn(ObjectBuilder) -> ObjectBuilder = $limit;
                limit(of_type(Type::String, $description, $example.into())).into()
            }
        }

        impl ToSchema for $name {}
    };
}

/// Printable ASCII that does not end in two stars.
const SCOPE_PATTERN: &str = r"^([\x20-\x7e]*[\x20-)+-\x7e])?\*?$";
/// Text that PostgreSQL can store.
const STORABLE_PATTERN: &str = r"^[^\x00]*$";

described_text!(Scope, "A scope; a star at its end matches anything.", "queue:create-task:*", |text| {
    text.pattern(Some(SCOPE_PATTERN))
});
described_text!(GivenScope, "A scope of a client or a role.", "queue:create-task:*", |text| {
    text.pattern(Some(SCOPE_PATTERN)).max_length(Some(4_096))
});
described_text!(Description, "For people.", "Submits tasks.", |text| {
    text.pattern(Some(STORABLE_PATTERN)).max_length(Some(10_240))
});
described_text!(Route, "An extra routing key, without the `route.` before it.", "index.acme.latest", |text| {
    text.pattern(Some(STORABLE_PATTERN)).min_length(Some(1)).max_length(Some(249))
});
described_text!(TagValue, "The value of a tag.", "nightly", |text| text.max_length(Some(4_096)));
