//! All roles, ready to expand scopes.

use sqlx::PgConnection;

use super::Fact;
use tenure_domain::roles::Resolver;
use tenure_store::roles;

#[derive(Debug)]
pub struct Roles;

impl Fact for Roles {
    const NAME: &'static str = roles::FACT;
    type Value = Resolver;

    async fn read(conn: &mut PgConnection) -> Result<Resolver, sqlx::Error> {
        Ok(Resolver::new(roles::load_all(conn).await?))
    }
}
