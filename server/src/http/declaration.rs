//! The declaration of an operation: its name, method and access, its limits, and its description in the document.

use std::time::Duration;

use axum::routing::MethodFilter;

use super::access::Access;
use super::body::{ANONYMOUS_BODY_MAX, BODY_MAX};
use super::budget::Share;
use super::docs::operation::Operation;
use super::docs::sample::Sample;

/// How long an answer may take unless its endpoint sets another time. Longer than a statement may take and than a batch
/// waits for a database that went silent: what is still unanswered then waits for something dead.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(60);

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET, and HEAD.
    Get,
    /// POST.
    Post,
    /// PUT.
    Put,
    /// DELETE.
    Delete,
}

impl Method {
    /// In lower case, as OpenAPI has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Put => "put",
            Self::Delete => "delete",
        }
    }

    /// As the router knows it.
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
    /// Not at all: its statements share a batch, or it is answered from memory or by a session of its own.
    None,
    /// It reads. Takes a read slot.
    Read,
    /// It writes. Takes a read slot only for callers without credentials, who are mostly refused after a read.
    Write,
}

/// Adds to the description of an operation what only this one has.
type Describe = Box<dyn Fn(Operation, &Sample) -> Operation + Send + Sync>;

/// The declaration of an operation.
pub struct Declaration {
    /// What the API calls the operation.
    pub name: &'static str,
    /// The method that it is called with.
    pub method: Method,
    /// Who may call it.
    pub access: Access,
    /// How it uses the connection pool.
    pub(super) pool_use: PoolUse,
    /// Whether its body has secrets, which an error must not repeat: errors end up in logs.
    pub(super) has_secret_body: bool,
    /// Whether its answers can be large.
    pub(super) has_large_answer: bool,
    /// How large the body of a caller without credentials may be, in bytes.
    pub(super) anonymous_body_max: usize,
    /// True if its handler waits for something, and then checks the caller again.
    pub(super) waits: bool,
    pub(super) tag: &'static str,
    pub(super) summary: &'static str,
    pub(super) describe: Describe,
}

impl Declaration {
    /// An operation without a description. `name` is what the API calls it.
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

    /// True if a request of this share needs a read slot.
    #[must_use]
    pub(super) fn takes_read_slot(&self, share: Share) -> bool {
        match self.pool_use {
            PoolUse::None => false,
            PoolUse::Read => true,
            PoolUse::Write => share == Share::Anonymous,
        }
    }

    /// The largest body that it takes from such a caller, in bytes.
    pub(super) fn body_max(&self, share: Share) -> usize {
        match share {
            Share::Anonymous => self.anonymous_body_max,
            Share::Authenticated => BODY_MAX,
        }
    }

    /// Its description in the document: its tag, a summary, and the rest.
    #[must_use]
    pub fn described(
        self,
        tag: &'static str,
        summary: &'static str,
        describe: impl Fn(Operation, &Sample) -> Operation + Send + Sync + 'static,
    ) -> Self {
        Self { tag, summary, describe: Box::new(describe), ..self }
    }

    /// Whether its callers are authenticated before the handler is called.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        matches!(self.access, Access::Scopes(_))
    }

    /// Its description, with examples made of the sample.
    #[must_use]
    pub fn describe(&self, sample: &Sample) -> Operation {
        let bare = Operation::new(self.name, self.tag, self.summary, self.access, self.anonymous_body_max);
        (self.describe)(bare, sample)
    }
}
