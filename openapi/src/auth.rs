//! Bodies of the Auth API: clients, roles, scopes. Field names follow Taskcluster's Auth service.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::schema::{Description, GivenScope, Scope};
use crate::structure::present;
use crate::whole::whole;

/// The body of createClient and updateClient.
#[derive(Deserialize, Debug, Clone, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientRequest {
    /// The client is refused from then on.
    pub expires: Timestamp,
    #[schema(value_type = Description)]
    pub description: String,
    /// Scopes before expansion. If absent: none for a new client, unchanged for an existing one.
    #[serde(default, deserialize_with = "present")]
    #[schema(max_items = 10_000, value_type = Option<Vec<GivenScope>>)]
    pub scopes: Option<Vec<String>>,
    /// True if the client may be deleted once it has expired.
    #[serde(default)]
    pub delete_on_expiration: bool,
}

#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Client<'a> {
    pub client_id: &'a str,
    pub description: &'a str,
    /// The client is refused from then on.
    pub expires: Timestamp,
    pub created: Timestamp,
    pub last_modified: Timestamp,
    /// Time of the last use, accurate to a few hours.
    pub last_date_used: Timestamp,
    /// Creation time of the token.
    pub last_rotated: Timestamp,
    /// True if the client may be deleted once it has expired.
    pub delete_on_expiration: bool,
    /// Scopes before expansion.
    pub scopes: &'a [String],
    /// Scopes after role expansion.
    pub expanded_scopes: Vec<&'a str>,
    /// True while its requests are refused.
    pub disabled: bool,
    /// Only in the response that creates the client or its token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_token: Option<&'a str>,
}

/// The body of createRole and updateRole.
#[derive(Deserialize, Debug, Clone, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RoleRequest {
    #[schema(value_type = Description)]
    pub description: String,
    /// Scopes before expansion.
    #[schema(max_items = 10_000, value_type = Vec<GivenScope>)]
    pub scopes: Vec<String>,
}

#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Role<'a> {
    pub role_id: &'a str,
    /// Scopes before expansion.
    pub scopes: &'a [String],
    pub description: &'a str,
    pub created: Timestamp,
    pub last_modified: Timestamp,
    /// Scopes after expansion, including those from other roles.
    pub expanded_scopes: Vec<String>,
}

/// A set of scopes, in requests and answers.
#[derive(Serialize, Deserialize, Debug, Clone, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Scopes {
    /// In any order.
    #[schema(value_type = Vec<Scope>)]
    pub scopes: Vec<String>,
}

/// The body of authenticateHawk: a request that another service received.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuthenticateHawkRequest {
    pub method: String,
    /// Path and query exactly as received.
    pub resource: String,
    /// The host without the port.
    pub host: String,
    /// The port that the client connected to.
    #[serde(deserialize_with = "whole")]
    #[schema(maximum = 65_535)]
    pub port: u16,
    /// The header `Authorization`, if present.
    #[serde(default, deserialize_with = "present")]
    pub authorization: Option<String>,
    /// The sender's address, for people who read logs.
    #[serde(default, deserialize_with = "present")]
    pub source_ip: Option<String>,
}

/// The answer to authenticateHawk.
#[derive(Serialize, Debug, ToSchema)]
#[serde(tag = "status", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Authentication<'a> {
    AuthSuccess {
        /// Always `hawk`.
        scheme: &'a str,
        client_id: &'a str,
        /// Expanded scopes of the sender.
        scopes: Vec<&'a str>,
        /// Expiry of the credentials.
        expires: Timestamp,
        /// The hash of the body, for the service to check.
        #[serde(skip_serializing_if = "Option::is_none")]
        hash: Option<&'a str>,
    },
    AuthFailed {
        message: String,
    },
    /// The request has no credentials.
    NoAuth {
        /// Always `none`.
        scheme: &'a str,
        /// Scopes of anonymous callers.
        scopes: Vec<&'a str>,
        /// End of this answer's validity.
        expires: Timestamp,
    },
}

#[derive(Deserialize, Debug, Default, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TestAuthenticateRequest {
    /// Scopes of the client `tester`.
    #[serde(default)]
    #[schema(value_type = Vec<Scope>)]
    pub client_scopes: Vec<String>,
    /// Scopes that the request requires.
    #[serde(default)]
    #[schema(value_type = Vec<Scope>)]
    pub required_scopes: Vec<String>,
}

#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TestAuthenticateResponse<'a> {
    /// The sender.
    pub client_id: &'a str,
    pub scopes: Vec<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authentication_status_is_kebab_case() {
        let json = |answer: Authentication<'_>| serde_json::to_value(answer).unwrap();
        let expires = Timestamp::new(chrono::DateTime::from_timestamp(0, 0).unwrap());
        let success = json(Authentication::AuthSuccess {
            scheme: "hawk",
            client_id: "ci",
            scopes: vec!["a"],
            expires,
            hash: None,
        });
        let expected = serde_json::json!({
            "status": "auth-success", "scheme": "hawk", "clientId": "ci", "scopes": ["a"],
            "expires": "1970-01-01T00:00:00.000Z",
        });
        assert_eq!(success, expected);
        let failed = json(Authentication::AuthFailed { message: "no".to_owned() });
        assert_eq!(failed, serde_json::json!({"status": "auth-failed", "message": "no"}));
        assert_eq!(json(Authentication::NoAuth { scheme: "none", scopes: vec![], expires })["status"], "no-auth");
    }

    #[test]
    fn client_requires_description_and_expiry_only() {
        let read = |text: &str| serde_json::from_str::<ClientRequest>(text);
        let full = r#"{"description":"d","expires":"2030-01-01T00:00:00Z","deleteOnExpiration":true,"scopes":["a"]}"#;
        assert!(read(full).unwrap().delete_on_expiration);
        assert!(read(r#"{"description":"d","expires":"2030-01-01T00:00:00Z"}"#).unwrap().scopes.is_none());
        for wrong in [
            r#"{"description":"d"}"#,
            r#"{"expires":"2030-01-01T00:00:00Z"}"#,
            r#"{"description":"d","expires":"2030-01-01T00:00:00Z","scopes":null}"#,
            r#"{"description":"d","expires":"2030-01-01T00:00:00Z","clientId":"a"}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
