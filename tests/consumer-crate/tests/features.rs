//! The client must not change how a user's own serde_json calls behave: cargo unifies its features
//! in the whole program.

use consumer_crate::{Either, Named, Shape, Size};
use serde_json::Value;

#[test]
fn tagged_enum_reads_floats() {
    let shape: Shape = serde_json::from_str(r#"{"t": "circle", "radius": 1.5}"#).unwrap();
    assert_eq!(shape, Shape::Circle { radius: 1.5 });
}

#[test]
fn flattened_struct_reads_floats() {
    let named: Named = serde_json::from_str(r#"{"name": "a", "width": 1.5, "height": 2.5}"#).unwrap();
    assert_eq!(named, Named { name: "a".to_owned(), size: Size { width: 1.5, height: 2.5 } });
}

#[test]
fn untagged_enum_reads_floats() {
    assert_eq!(serde_json::from_str::<Either>("1.5").unwrap(), Either::Number(1.5));
    assert_eq!(serde_json::from_str::<Either>("[1.5, 2]").unwrap(), Either::Numbers(vec![1.5, 2.0]));
}

/// Behaviour of serde_json without its features `arbitrary_precision`, `preserve_order` and
/// `unbounded_depth`.
#[test]
fn client_leaves_serde_json_as_it_is() {
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(value("1.50").to_string(), "1.5");
    assert_eq!(value(r#"{"b": 1, "a": 2}"#).to_string(), r#"{"a":2,"b":1}"#);
    assert!(serde_json::from_str::<Value>(&"[".repeat(200)).unwrap_err().to_string().contains("recursion limit"));
}
