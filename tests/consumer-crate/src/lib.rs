//! Payloads in the shapes that serde reads through a buffer.

use serde::Deserialize;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "t", rename_all = "lowercase")]
pub enum Shape {
    Circle { radius: f64 },
    Square { side: f64 },
}

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

/// A payload without a field for its type: serde takes the first variant that fits.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Either {
    Number(f64),
    Numbers(Vec<f64>),
}
