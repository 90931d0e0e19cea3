//! A statement for either driver, with encoded parameters, so it borrows nothing from its members.

use std::future::Future;
use std::ops::Range;

use bytes::{BufMut, BytesMut};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgRow, PgTypeInfo};
use sqlx::{Decode, Encode, PgConnection, Postgres, Row as _, Type};
use tokio_postgres::types::{self, FromSqlOwned, ToSql, to_sql_checked};

/// Initial capacity for parameters, enough for most batches.
const PARAMS_BYTES: usize = 4 << 10;

#[derive(Debug)]
pub struct Statement {
    text: &'static str,
    bytes: PgArgumentBuffer,
    params: Vec<(PgTypeInfo, Range<usize>)>,
}

impl Statement {
    /// Use `statement!`, which checks the text.
    pub fn new(text: &'static str) -> Self {
        let mut bytes = PgArgumentBuffer::default();
        bytes.reserve(PARAMS_BYTES);
        Self { text, bytes, params: Vec::new() }
    }

    /// Adds a parameter, which must not be null.
    #[must_use]
    pub fn with<'q, T: Encode<'q, Postgres> + Type<Postgres>>(mut self, value: &T) -> Self {
        let start = self.bytes.len();
        let null = value.encode_by_ref(&mut self.bytes).expect("a batch is far smaller than what PostgreSQL takes");
        assert!(!null.is_null(), "a parameter of a hot statement is null");
        let kind = value.produces().unwrap_or_else(T::type_info);
        self.params.push((kind, start..self.bytes.len()));
        self
    }

    pub(super) fn text(&self) -> &'static str {
        self.text
    }

    pub(super) fn encoded(&self) -> impl ExactSizeIterator<Item = Encoded<'_>> {
        self.params.iter().map(|(kind, place)| Encoded { kind, bytes: &self.bytes[place.clone()] })
    }
}

/// Makes a [`Statement`]. At build time, `query_as!` checks text, parameters and columns; it never
/// runs.
macro_rules! statement {
    ($row:ident, $text:tt $(, $param:expr)* $(,)?) => {{
        if false {
            drop(sqlx::query_as!($row, $text $(, $param)*));
        }
        $crate::hot::statement::Statement::new($text)$(.with(&$param))*
    }};
}
pub(crate) use statement;

/// An encoded value, for both drivers.
#[derive(Debug)]
pub(super) struct Encoded<'a> {
    kind: &'a PgTypeInfo,
    bytes: &'a [u8],
}

impl ToSql for Encoded<'_> {
    fn to_sql(&self, kind: &types::Type, out: &mut BytesMut) -> Result<types::IsNull, BoxDynError> {
        if self.kind.oid().is_none_or(|oid| oid.0 != kind.oid()) {
            return Err(format!("a parameter is {:?}, not {kind}", self.kind).into());
        }
        out.put_slice(self.bytes);
        Ok(types::IsNull::No)
    }

    fn accepts(_: &types::Type) -> bool {
        true
    }

    to_sql_checked!();
}

impl Encode<'_, Postgres> for Encoded<'_> {
    fn encode_by_ref(&self, out: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        out.extend_from_slice(self.bytes);
        Ok(IsNull::No)
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(self.kind.clone())
    }
}

impl Type<Postgres> for Encoded<'_> {
    /// Unused: each value has its own type.
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("unknown")
    }
}

pub trait Run {
    fn run_one(&mut self, statement: &Statement) -> impl Future<Output = Result<Rows, sqlx::Error>> + Send;
}

impl Run for PgConnection {
    async fn run_one(&mut self, statement: &Statement) -> Result<Rows, sqlx::Error> {
        let query = sqlx::query::<Postgres>(statement.text);
        let query = statement.encoded().fold(query, sqlx::query::Query::bind);
        Ok(Rows::OfSession(query.fetch_all(self).await?))
    }
}

#[derive(Debug)]
pub enum Rows {
    OfTick(Vec<tokio_postgres::Row>),
    OfSession(Vec<PgRow>),
}

impl Rows {
    pub fn decode<T: FromRow>(&self) -> Result<Vec<T>, sqlx::Error> {
        match self {
            Self::OfTick(rows) => rows.iter().map(T::from_row).collect(),
            Self::OfSession(rows) => rows.iter().map(T::from_row).collect(),
        }
    }

    pub(crate) fn one<T: FromRow>(&self) -> Result<T, sqlx::Error> {
        self.decode()?.pop().ok_or(sqlx::Error::RowNotFound)
    }
}

/// Columns of a row, by index from 0.
pub trait Columns {
    fn column<T>(&self, place: usize) -> Result<T, sqlx::Error>
    where
        T: FromSqlOwned + for<'r> Decode<'r, Postgres> + Type<Postgres>;
}

impl Columns for tokio_postgres::Row {
    fn column<T: FromSqlOwned>(&self, place: usize) -> Result<T, sqlx::Error> {
        self.try_get(place).map_err(|error| sqlx::Error::Decode(Box::new(error)))
    }
}

impl Columns for PgRow {
    fn column<T>(&self, place: usize) -> Result<T, sqlx::Error>
    where
        T: FromSqlOwned + for<'r> Decode<'r, Postgres> + Type<Postgres>,
    {
        self.try_get(place)
    }
}

/// Decoded from a row; `row!` declares such structs.
pub trait FromRow: Sized {
    /// Names of the columns in order, without nullability markers.
    const COLUMNS: &'static [&'static str];

    fn from_row(row: &impl Columns) -> Result<Self, sqlx::Error>;
}

/// Declares a struct decoded from a row, with columns in the order of its fields.
macro_rules! row {
    (
        $(#[$meta:meta])*
        $visible:vis struct $row:ident {
            $($(#[$field_meta:meta])* $field_visible:vis $field:ident: $kind:ty),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        $visible struct $row {
            $($(#[$field_meta])* $field_visible $field: $kind),+
        }

        impl $crate::hot::statement::FromRow for $row {
            const COLUMNS: &'static [&'static str] = &[$(stringify!($field)),+];

            fn from_row(row: &impl $crate::hot::statement::Columns) -> Result<Self, sqlx::Error> {
                let mut places = 0..;
                Ok(Self {
                    $($field: row.column(places.next().unwrap_or_default())?),+
                })
            }
        }
    };
}
pub(crate) use row;
