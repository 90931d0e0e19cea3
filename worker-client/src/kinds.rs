//! Payloads of queues with several kinds of jobs: `{"kind": name, "args": {…}}`, also those of the
//! Python library.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

/// Payload or arguments without any field.
pub(crate) const EMPTY: &str = "{}";
const NULL: &str = "null";

#[derive(Serialize)]
struct Payload<'a> {
    kind: &'a str,
    args: &'a RawValue,
}

/// Writes a payload, of this kind if there is one. A value without fields, such as `()`, is an
/// empty object: a payload is always an object.
pub(crate) fn write(value: &impl Serialize, kind: Option<&str>) -> Result<Box<RawValue>, serde_json::Error> {
    let mut args = to_raw_value(value)?;
    if args.get() == NULL {
        args = RawValue::from_string(EMPTY.to_owned())?;
    }
    match kind {
        Some(kind) => to_raw_value(&Payload { kind, args: &args }),
        None => Ok(args),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn payload_is_an_object_with_its_kind() {
        for (value, kind, payload) in [
            (json!({"to": "a"}), None, r#"{"to":"a"}"#),
            (json!({"to": "a"}), Some("send"), r#"{"kind":"send","args":{"to":"a"}}"#),
            (json!(null), None, "{}"),
            (json!(null), Some("sweep"), r#"{"kind":"sweep","args":{}}"#),
        ] {
            assert_eq!(write(&value, kind).unwrap().get(), payload);
        }
    }
}
