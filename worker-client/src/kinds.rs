//! Payloads of queues with several kinds of jobs: `{"kind": name, "args": {…}}`, also those of the
//! Python library.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// Payload or arguments without any field.
const EMPTY: &str = "{}";
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

#[derive(Deserialize)]
struct ReceivedPayload {
    kind: String,
    #[serde(default)]
    args: Option<Box<RawValue>>,
}

/// Returns the kind and the arguments of a payload.
pub(crate) fn split(payload: &RawValue) -> Result<(String, Box<RawValue>), serde_json::Error> {
    let ReceivedPayload { kind, args } = serde_json::from_str(payload.get())?;
    let args = match args {
        Some(args) => args,
        None => RawValue::from_string(EMPTY.to_owned())?,
    };
    Ok((kind, args))
}

/// Reads a payload or arguments. An empty object may be a value without fields, such as `()`.
pub(crate) fn read<P: DeserializeOwned>(payload: &RawValue) -> Result<P, serde_json::Error> {
    let text = payload.get();
    let is_empty = || text.chars().filter(|char| !char.is_whitespace()).eq(EMPTY.chars());
    serde_json::from_str(text)
        .or_else(|error| if is_empty() { serde_json::from_str(NULL).map_err(|_| error) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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

    #[test]
    fn kind_and_arguments_are_read() {
        for (payload, expected) in [
            (r#"{"kind": "send", "args": {"n": 1.50}, "more": 1}"#, Some(("send", r#"{"n": 1.50}"#))),
            (r#"{"kind": "sweep"}"#, Some(("sweep", "{}"))),
            (r#"{"kind": "sweep", "args": null}"#, Some(("sweep", "{}"))),
            (r#"{"args": {}}"#, None),
            (r#"{"kind": 1}"#, None),
        ] {
            let split = split(&RawValue::from_string(payload.to_owned()).unwrap()).ok();
            let split = split.as_ref().map(|(kind, args)| (kind.as_str(), args.get()));
            assert_eq!(split, expected, "{payload}");
        }
    }

    #[test]
    fn empty_object_may_be_a_value_without_fields() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        read::<()>(&raw("{}")).unwrap();
        read::<()>(&raw("{ }")).unwrap();
        read::<()>(&raw("{\n}")).unwrap();
        assert_eq!(read::<Value>(&raw("{}")).unwrap(), json!({}));
        assert!(read::<()>(&raw(r#"{"a": 1}"#)).is_err());
        assert!(read::<u8>(&raw("{}")).unwrap_err().to_string().contains("invalid type: map"));
    }
}
