//! The declaration of an operation: name, method, access, limits and description.

use std::time::Duration;

use axum::routing::MethodFilter;

use super::access::Access;
use super::body::{ANONYMOUS_BODY_MAX, BODY_MAX};
use super::budget::Share;
use super::docs::operation::Operation;
use super::docs::sample::Sample;

/// Default time limit for a response. Longer than a statement's limit and than a batch waits for a
/// silent database.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Tag of operations that Taskcluster does not have.
const OWN_TAG: &str = "tenure";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// And HEAD.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolUse {
    /// Unused: statements share a batch, or the response comes from memory or a dedicated
    /// connection.
    None,
    /// Takes a read slot.
    Read,
    /// Only callers without credentials take a read slot: most are refused after a read.
    Write,
}

type Describe = Box<dyn Fn(Operation, &Sample) -> Operation + Send + Sync>;

pub struct Declaration {
    /// Operation name in the API.
    pub name: &'static str,
    pub method: Method,
    pub access: Access,
    pub(super) pool_use: PoolUse,
    /// If true, errors must not repeat the body, because they end up in logs.
    pub(super) has_secret_body: bool,
    pub(super) has_large_answer: bool,
    /// For callers without credentials, in bytes.
    pub(super) anonymous_body_max: usize,
    /// True if the handler waits and then checks the caller again.
    pub(super) waits: bool,
    pub(super) tag: &'static str,
    pub(super) summary: &'static str,
    pub(super) describe: Describe,
}

impl Declaration {
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

    #[must_use]
    pub(super) fn takes_read_slot(&self, share: Share) -> bool {
        match self.pool_use {
            PoolUse::None => false,
            PoolUse::Read => true,
            PoolUse::Write => share == Share::Anonymous,
        }
    }

    /// In bytes.
    pub(super) fn body_max(&self, share: Share) -> usize {
        match share {
            Share::Anonymous => self.anonymous_body_max,
            Share::Authenticated => BODY_MAX,
        }
    }

    #[must_use]
    pub fn described(
        self,
        tag: &'static str,
        summary: &'static str,
        describe: impl Fn(Operation, &Sample) -> Operation + Send + Sync + 'static,
    ) -> Self {
        Self { tag, summary, describe: Box::new(describe), ..self }
    }

    /// True for operations that Taskcluster does not have: `mail` in their paths is `default/mail`.
    #[must_use]
    pub(super) fn accepts_short_queue_names(&self) -> bool {
        self.tag == OWN_TAG
    }

    /// True if authentication precedes the handler.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        matches!(self.access, Access::Scopes(_))
    }

    #[must_use]
    pub fn describe(&self, sample: &Sample) -> Operation {
        let bare = Operation::new(self.name, self.tag, self.summary, self.access, self.anonymous_body_max);
        (self.describe)(bare, sample)
    }
}
