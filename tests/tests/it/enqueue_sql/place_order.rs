async fn place_order(pool: &sqlx::PgPool, customer: &str) -> Result<String, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    sqlx::query("INSERT INTO orders (customer) VALUES ($1)").bind(customer).execute(&mut *transaction).await?;
    let task: String = sqlx::query_scalar("SELECT tenure_enqueue('acme/mail', jsonb_build_object('to', $1::text))")
        .bind(customer)
        .fetch_one(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(task)
}
