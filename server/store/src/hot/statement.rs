//! A hot statement as it is sent: its text, and its parameters encoded already, so that nothing of the members has to live
//! until then.

use std::ops::Range;

use bytes::{BufMut, BytesMut};
use chrono::{DateTime, Utc};
use sqlx::{Execute, Postgres};
use tokio_postgres::types::{FromSqlOwned, IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

/// A value that hot statements take.
pub trait Param: ToSql {
    /// Its type.
    const TYPE: Type;
}

macro_rules! params {
    ($($rust:ty => $sql:ident),+ $(,)?) => { $(impl Param for $rust { const TYPE: Type = Type::$sql; })+ };
}

params! {
    i16 => INT2, i32 => INT4, i64 => INT8, f64 => FLOAT8, Uuid => UUID, &str => TEXT, DateTime<Utc> => TIMESTAMPTZ,
    Vec<bool> => BOOL_ARRAY, Vec<i16> => INT2_ARRAY, Vec<Option<&str>> => TEXT_ARRAY, Vec<Option<i16>> => INT2_ARRAY, Vec<i32> => INT4_ARRAY,
    Vec<Option<i32>> => INT4_ARRAY,
    Vec<i64> => INT8_ARRAY, Vec<Option<i64>> => INT8_ARRAY, Vec<f64> => FLOAT8_ARRAY, Vec<Option<f64>> => FLOAT8_ARRAY, Vec<&str> => TEXT_ARRAY,
    Vec<String> => TEXT_ARRAY, Vec<Uuid> => UUID_ARRAY, Vec<DateTime<Utc>> => TIMESTAMPTZ_ARRAY,
    Vec<Option<DateTime<Utc>>> => TIMESTAMPTZ_ARRAY,
}

/// A statement and its parameters.
#[derive(Debug)]
pub struct Statement {
    text: &'static str,
    bytes: BytesMut,
    params: Vec<(Type, Range<usize>)>,
}

impl Statement {
    /// A statement without parameters yet.
    #[must_use]
    pub fn new(text: &'static str) -> Self {
        Self { text, bytes: BytesMut::new(), params: Vec::new() }
    }

    /// The same with room for parameters of so many bytes: else it is copied again and again as it grows.
    #[must_use]
    pub fn with_room(mut self, bytes: usize) -> Self {
        self.bytes.reserve(bytes);
        self
    }

    /// The same with one more parameter.
    #[must_use]
    pub fn with<T: Param>(mut self, value: &T) -> Self {
        let start = self.bytes.len();
        value.to_sql(&T::TYPE, &mut self.bytes).expect("a batch is far smaller than what PostgreSQL takes");
        self.params.push((T::TYPE, start..self.bytes.len()));
        self
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// The types of its parameters.
    pub fn types(&self) -> impl ExactSizeIterator<Item = &Type> {
        self.params.iter().map(|(kind, _)| kind)
    }

    /// Its parameters, as they are sent.
    pub(super) fn encoded(&self) -> impl ExactSizeIterator<Item = Encoded<'_>> {
        self.params.iter().map(|(kind, place)| Encoded { kind, bytes: &self.bytes[place.clone()] })
    }
}

/// An encoded value.
#[derive(Debug)]
pub(super) struct Encoded<'a> {
    kind: &'a Type,
    bytes: &'a [u8],
}

impl ToSql for Encoded<'_> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        if kind != self.kind {
            return Err(format!("a parameter is {}, not {kind}", self.kind).into());
        }
        out.put_slice(self.bytes);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// The rows that a statement answered with.
#[derive(Debug)]
pub struct Rows(pub(super) Vec<tokio_postgres::Row>);

impl Rows {
    /// The rows as what they are.
    pub fn decode<T: FromRow>(&self) -> Result<Vec<T>, sqlx::Error> {
        self.0.iter().map(T::from_row).collect()
    }
}

/// What a row of a hot statement is decoded to.
pub trait FromRow: Sized {
    /// The names of its columns, in order, as the statement has them without the marks that say whether they may be null.
    const COLUMNS: &'static [&'static str];

    /// Decodes a row.
    fn from_row(row: &tokio_postgres::Row) -> Result<Self, sqlx::Error>;

    /// Those of its columns that cannot be decoded from these types.
    #[cfg(test)]
    fn unfit(types: &[Type]) -> Vec<&'static str>;
}

/// Whether the field that this function reads can be decoded from this type.
#[cfg(test)]
pub(crate) fn is_fit<R, T: FromSqlOwned>(_: fn(&R) -> &T, kind: &Type) -> bool {
    T::accepts(kind)
}

/// One column of a row.
pub(crate) fn column<T: FromSqlOwned>(row: &tokio_postgres::Row, place: usize) -> Result<T, sqlx::Error> {
    row.try_get(place).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

/// Has a struct decoded from the columns of a row, which its fields are listed in the order of.
macro_rules! from_row {
    ($row:ident { $($field:ident),+ $(,)? }) => {
        impl $crate::hot::statement::FromRow for $row {
            const COLUMNS: &'static [&'static str] = &[$(stringify!($field)),+];

            fn from_row(row: &tokio_postgres::Row) -> Result<Self, sqlx::Error> {
                let mut places = 0..;
                Ok(Self {
                    $($field: $crate::hot::statement::column(row, places.next().unwrap_or_default())?),+
                })
            }

            #[cfg(test)]
            fn unfit(types: &[tokio_postgres::types::Type]) -> Vec<&'static str> {
                let mut types = types.iter();
                let mut unfit = Vec::new();
                $(
                    let kind = types.next().expect("there is a type for each column");
                    if !$crate::hot::statement::is_fit(|row: &Self| &row.$field, kind) {
                        unfit.push(stringify!($field));
                    }
                )+
                unfit
            }
        }
    };
}
pub(crate) use from_row;

/// The text of a statement that sqlx has checked.
pub(crate) fn text<'q>(query: impl Execute<'q, Postgres>) -> String {
    query.sql().as_str().to_owned()
}
