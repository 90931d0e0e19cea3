//! The payloads of a user's tasks, in the shapes that serde reads by way of a buffer.

use serde::Deserialize;

/// A payload with a field for its type.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "t", rename_all = "lowercase")]
pub enum Shape {
    Circle { radius: f64 },
    Square { side: f64 },
}

/// A payload with another one in it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Named {
    pub name: String,
    #[serde(flatten)]
    pub size: Size,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Size {
    pub width: f64,
    pub height: f32,
}

/// A payload without a field for its type: the first variant that fits is taken.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Either {
    Number(f64),
    Numbers(Vec<f64>),
}
