//! Compatibility of a program with a schema that a later release has migrated.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schema {
    pub newest: i64,
    /// The last migration that a program must know, or 0.
    pub needed: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    Current,
    Older,
    /// A later release has removed parts that the program uses.
    TooOld,
}

impl Age {
    /// `known` is the last migration that the program knows.
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
