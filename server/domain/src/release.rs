//! Whether a program may use a schema that a later release has migrated.

/// How far a database has been migrated, by the numbers of migrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schema {
    /// The last one that was applied.
    pub newest: i64,
    /// The last one that a program must know; 0 where no migration has said so.
    pub needed: i64,
}

/// Whether a program can use a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// It knows all of it.
    Current,
    /// A later release has migrated it, which works with this one.
    Older,
    /// A later release has taken away what it uses.
    TooOld,
}

impl Age {
    /// Whether a program that knows the migrations up to `known` can use this schema.
    pub fn of(known: i64, schema: Schema) -> Self {
        if known < schema.needed {
            Self::TooOld
        } else if known < schema.newest {
            Self::Older
        } else {
            Self::Current
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_too_old_once_a_migration_says_so() {
        for (known, newest, needed, age) in [
            (16, 16, 0, Age::Current),
            (16, 15, 0, Age::Current),
            (16, 16, 16, Age::Current),
            (16, 17, 0, Age::Older),
            (16, 20, 16, Age::Older),
            (16, 20, 17, Age::TooOld),
            (16, 16, 17, Age::TooOld),
        ] {
            assert_eq!(Age::of(known, Schema { newest, needed }), age, "{known} {newest} {needed}");
        }
    }
}
