// Connections to the PostgreSQL that the variables PGHOST, PGUSER, … name.

import pg from "pg";

// Two pools fit into PostgreSQL's 100 connections.
export const CONNECTIONS = 40;

export function pool() {
  const made = new pg.Pool({ max: CONNECTIONS });
  made.on("error", (error) => console.error(error));
  made.on("connect", (client) => client.on("error", (error) => console.error(error)));
  return made;
}
