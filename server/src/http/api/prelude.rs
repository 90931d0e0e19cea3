//! Imports of most handlers.

pub(super) use std::sync::Arc;

pub(super) use axum::response::Response;
pub(super) use serde::Serialize;
pub(super) use serde_json::{Value, json};
pub(super) use tenure_api::dates::Timestamp;
pub(super) use tenure_api::errors::ErrorCode::{self, InputError, RequestConflict, ResourceNotFound};
pub(super) use tenure_api::ids::{RunId, TaskId, TaskQueueId};
pub(super) use utoipa::ToSchema;

pub(super) use super::pages::{PAGE_MAX, Page};
pub(super) use super::state::{Api, Endpoint};
pub(super) use super::{nothing, ok, query_time, raw};
pub(super) use crate::http::call::Call;
pub(super) use crate::http::docs::operation::Operation;
pub(super) use crate::http::docs::parameters::paged;
pub(super) use crate::http::docs::sample::{QUEUE, Sample};
pub(super) use crate::http::error::ApiError;
pub(super) use crate::http::scopes::Template::{self, AllOf, AnyOf, ForEach, Scope};
pub(super) use crate::http::scopes::Values;
