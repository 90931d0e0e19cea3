//! Requests of a poller to the URLs of a queue. The URLs have the same form on Tenure and on
//! Azure's queue service, so both are measured with the same code.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tenure_api::ids::SlugId;

use super::BenchError;
use super::lane::refusal;
use tenure_driver::http::Client;
use tenure_driver::wire::Reply;

const XML: &str = "application/xml";
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

#[derive(Debug, Clone)]
pub(crate) struct QueueUrls {
    pub(crate) poll: String,
    /// Template for a delete; lacks the message id and receipt.
    pub(crate) delete: String,
    /// Puts a message. Tenure has none, since createTask puts messages.
    pub(crate) put: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SignedUrls {
    signed_poll_url: String,
    signed_delete_url: String,
}

impl SignedUrls {
    pub(crate) fn into_paths(self) -> Option<QueueUrls> {
        let path = |url: String| {
            let rest = url.strip_prefix("http://")?;
            Some(rest[rest.find('/')?..].to_owned())
        };
        Some(QueueUrls { poll: path(self.signed_poll_url)?, delete: path(self.signed_delete_url)?, put: None })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Message {
    #[serde(rename = "MessageId")]
    id: String,
    #[serde(rename = "PopReceipt")]
    receipt: String,
    #[serde(rename = "MessageText")]
    pub(crate) text: String,
}

#[derive(Debug, Deserialize)]
struct MessageList {
    #[serde(rename = "QueueMessage", default)]
    messages: Vec<Message>,
}

/// Text of the message of a task's first run. Azure gets the same text that Tenure generates.
pub(crate) fn text_of(task: SlugId) -> String {
    STANDARD.encode(format!(r#"{{"taskId":"{task}","runId":0}}"#))
}

pub(crate) async fn get(client: &mut Client, urls: &QueueUrls, limit: u8) -> Result<Vec<Message>, BenchError> {
    let resource = format!("{}&numofmessages={limit}", urls.poll);
    let reply = checked("get messages", 200, client.exchange_unsigned("GET", &resource, None).await?)?;
    read_messages(&reply.body)
}

pub(crate) async fn delete(client: &mut Client, urls: &QueueUrls, message: &Message) -> Result<(), BenchError> {
    let encode = |value| utf8_percent_encode(value, NON_ALPHANUMERIC).to_string();
    let resource = urls.delete.replace("{{messageId}}", &encode(&message.id));
    let resource = resource.replace("{{popReceipt}}", &encode(&message.receipt));
    checked("delete a message", 204, client.exchange_unsigned("DELETE", &resource, None).await?)?;
    Ok(())
}

pub(crate) async fn put(client: &mut Client, path: &str, text: &str) -> Result<(), BenchError> {
    let body = format!("<QueueMessage><MessageText>{text}</MessageText></QueueMessage>");
    checked("put a message", 201, client.exchange_unsigned("POST", path, Some((XML, body.as_bytes()))).await?)?;
    Ok(())
}

/// Creates a queue unless it exists.
pub(crate) async fn make_queue(client: &mut Client, resource: &str) -> Result<(), BenchError> {
    let reply = client.exchange_unsigned("PUT", resource, None).await?;
    if matches!(reply.status, 201 | 204) { Ok(()) } else { Err(refusal("create a queue", &reply)) }
}

pub(crate) async fn remove_queue(client: &mut Client, resource: &str) -> Result<(), BenchError> {
    checked("delete a queue", 204, client.exchange_unsigned("DELETE", resource, None).await?)?;
    Ok(())
}

fn checked(what: &'static str, expected: u16, reply: Reply) -> Result<Reply, BenchError> {
    if reply.status == expected { Ok(reply) } else { Err(refusal(what, &reply)) }
}

fn read_messages(answer: &[u8]) -> Result<Vec<Message>, BenchError> {
    let answer = answer.strip_prefix(BYTE_ORDER_MARK).unwrap_or(answer);
    let list: MessageList = quick_xml::de::from_reader(answer)
        .map_err(|error| BenchError::Answer { what: "get messages", reason: error.to_string() })?;
    Ok(list.messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_with_and_without_messages_parse() {
        let one = |id: &str| {
            format!(
                "<QueueMessage><MessageId>{id}</MessageId><InsertionTime>x</InsertionTime><PopReceipt>+/=</PopReceipt>\
                 <DequeueCount>1</DequeueCount><MessageText>e30=</MessageText></QueueMessage>"
            )
        };
        let list =
            |inner: &str| format!("\u{feff}<?xml version=\"1.0\"?><QueueMessagesList>{inner}</QueueMessagesList>");
        let messages = read_messages(list(&(one("a") + &one("b"))).as_bytes()).unwrap();
        assert_eq!(messages.len(), 2);
        let expected = Message { id: "b".to_owned(), receipt: "+/=".to_owned(), text: "e30=".to_owned() };
        assert_eq!(messages[1], expected);
        assert_eq!(read_messages(b"<QueueMessagesList />").unwrap(), []);
        assert!(read_messages(b"{}").is_err());
    }

    #[test]
    fn signed_url_is_reduced_to_path() {
        let urls = SignedUrls {
            signed_poll_url: "http://h:1/p/q/messages?sig=a%2F".to_owned(),
            signed_delete_url: "http://h:1/p/q/messages/{{messageId}}?popreceipt={{popReceipt}}&sig=b".to_owned(),
        };
        let paths = urls.into_paths().unwrap();
        assert_eq!(paths.poll, "/p/q/messages?sig=a%2F");
        assert_eq!(paths.delete, "/p/q/messages/{{messageId}}?popreceipt={{popReceipt}}&sig=b");
    }
}
