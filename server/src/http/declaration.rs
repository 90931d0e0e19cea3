//! The declaration of an operation: name, method, access, limits, and its description in the
//! document.

use std::time::Duration;

use axum::routing::MethodFilter;

use super::access::Access;
use super::body::{ANONYMOUS_BODY_MAX, BODY_MAX};
use super::budget::Share;
use super::docs::operation::Operation;
use super::docs::sample::Sample;

/// Default time limit for a response. It exceeds the limit of a statement and the wait of a batch
/// for a silent database. A request that takes longer waits for something dead.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET and HEAD.
    Get,
    Post,
    Put,
    Delete,
}

impl Method {
    /// Lower case, as in OpenAPI.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Put => "put",
            Self::Delete => "delete",
        }
    }

    /// The router's filter for this method.
    #[must_use]
    pub fn filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET,
            Self::Post => MethodFilter::POST,
            Self::Put => MethodFilter::PUT,
            Self::Delete => MethodFilter::DELETE,
        }
    }
}

/// How an operation uses the connection pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolUse {
    /// Not at all. Its statements share a batch, or the response comes from memory or a dedicated
    /// connection.
    None,
    /// It reads, and takes a read slot.
    Read,
    /// It writes. Only callers without credentials take a read slot: most of them are refused after
    /// a read.
    Write,
}

/// Adds the details of one operation to its description.
type Describe = Box<dyn Fn(Operation, &Sample) -> Operation + Send + Sync>;

pub struct Declaration {
    /// Operation name in the API.
    pub name: &'static str,
    pub method: Method,
    pub access: Access,
    pub(super) pool_use: PoolUse,
    /// True if the body contains secrets. Errors must not repeat it, because they end up in logs.
    pub(super) has_secret_body: bool,
    pub(super) has_large_answer: bool,
    /// Body limit for callers without credentials, in bytes.
    pub(super) anonymous_body_max: usize,
    /// True if the handler waits for an event and then checks the caller again.
    pub(super) waits: bool,
    pub(super) tag: &'static str,
    pub(super) summary: &'static str,
    pub(super) describe: Describe,
}

impl Declaration {
    /// Creates a declaration without a description.
    #[must_use]
    pub fn new(method: Method, name: &'static str, access: Access) -> Self {
        Self {
            name,
            method,
            access,
            pool_use: if method == Method::Get { PoolUse::Read } else { PoolUse::Write },
            has_secret_body: false,
            has_large_answer: false,
            anonymous_body_max: ANONYMOUS_BODY_MAX,
            waits: false,
            tag: "",
            summary: "",
            describe: Box::new(|operation, _| operation),
        }
    }

    /// True if a request of this caller class needs a read slot.
    #[must_use]
    pub(super) fn takes_read_slot(&self, share: Share) -> bool {
        match self.pool_use {
            PoolUse::None => false,
            PoolUse::Read => true,
            PoolUse::Write => share == Share::Anonymous,
        }
    }

    /// Body limit for this caller class, in bytes.
    pub(super) fn body_max(&self, share: Share) -> usize {
        match share {
            Share::Anonymous => self.anonymous_body_max,
            Share::Authenticated => BODY_MAX,
        }
    }

    /// Sets the description for the document.
    #[must_use]
    pub fn described(
        self,
        tag: &'static str,
        summary: &'static str,
        describe: impl Fn(Operation, &Sample) -> Operation + Send + Sync + 'static,
    ) -> Self {
        Self { tag, summary, describe: Box::new(describe), ..self }
    }

    /// True if callers are authenticated before the handler runs.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        matches!(self.access, Access::Scopes(_))
    }

    /// Describes the operation, with examples from `sample`.
    #[must_use]
    pub fn describe(&self, sample: &Sample) -> Operation {
        let bare = Operation::new(self.name, self.tag, self.summary, self.access, self.anonymous_body_max);
        (self.describe)(bare, sample)
    }
}
