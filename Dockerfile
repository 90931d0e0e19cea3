# syntax=docker/dockerfile:1
# Tenure in a container: the server, and tenure-worker. Without DATABASE_URL it runs a PostgreSQL of its own in /var/lib/tenure.
#
#   docker build --tag tenure --build-arg TENURE_COMMIT=$(git rev-parse HEAD) .
#   docker run --publish 8080:8080 --volume tenure:/var/lib/tenure --env TENURE_ROOT_URL=http://localhost:8080 tenure

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY .sqlx .sqlx
COPY migrations migrations
COPY openapi openapi
COPY server server
COPY worker-client worker-client
COPY tests tests
# The SQL was checked when it was written; .sqlx has what is needed to compile it without a database.
ENV SQLX_OFFLINE=true
# What /__version__ says; the checkout is not copied.
ARG TENURE_COMMIT=
RUN cargo build --locked --profile dist -p tenure-server -p tenure-worker

FROM debian:bookworm-slim
# PostgreSQL for embedded mode; the package must not make a cluster of its own. curl is for the health check, tini is the init.
RUN mkdir -p /etc/postgresql-common/createcluster.d \
 && echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.d/tenure.conf \
 && apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates curl postgresql-15 tini \
 && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --home-dir /var/lib/tenure --create-home --shell /usr/sbin/nologin tenure \
 && chmod 700 /var/lib/tenure
COPY --from=build /src/target/dist/tenure /src/target/dist/tenure-worker /usr/local/bin/
USER tenure
WORKDIR /var/lib/tenure
VOLUME /var/lib/tenure
# 0.0.0.0 takes a root URL: give TENURE_ROOT_URL the URL that clients use.
ENV TENURE_LISTEN=0.0.0.0:8080 TENURE_DATA_DIR=/var/lib/tenure/data
EXPOSE 8080
# The process responds; whether the database does too is for alarms, not for restarts. Nothing responds until
# recovery and migrations are done; the period ends with the first response.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m \
  CMD ["curl", "--fail", "--silent", "--output", "/dev/null", "http://127.0.0.1:8080/livez"]
# A stop takes 18 seconds at most: give the container longer than that (docker stop --time 30).
STOPSIGNAL SIGTERM
# tini reaps processes that lost their parents, also those of tenure-worker's tasks.
ENTRYPOINT ["tini", "--", "tenure"]
CMD ["serve"]
