//! Descriptions of the poll API's endpoints, which share a handler. See docs/messages.md.

use serde_json::{Value, json};

use super::error::Code;
use crate::http::access::Access;
use crate::http::declaration::{Declaration, Method};
use crate::http::docs::operation::Operation;
use crate::http::docs::sample::Sample;

const RECEIPT: &str = "+/+/AAAAAAAAAAM=";
const XML: &str = "application/xml";

fn signed(
    method: Method,
    name: &'static str,
    summary: &'static str,
    describe: impl Fn(Operation, &Sample) -> Operation + Send + Sync + 'static,
) -> Declaration {
    let describe = move |operation, sample: &Sample| signature(describe(operation, sample));
    Declaration::new(method, name, Access::SignedUrl).described("messages", summary, describe)
}

/// `GET /:queue`
pub fn get_message_queue() -> Declaration {
    signed(Method::Get, "getMessageQueue", "Count a queue's messages", |operation, _| count(operation))
}

/// `GET /:queue/messages`
pub fn get_messages() -> Declaration {
    signed(Method::Get, "getMessages", "Get or peek at messages", get)
}

/// `DELETE /:queue/messages/:messageId`
pub fn delete_message() -> Declaration {
    signed(Method::Delete, "deleteMessage", "Delete a message", |operation, _| delete(operation))
}

/// `PUT /:queue/messages/:messageId`
pub fn update_message() -> Declaration {
    signed(Method::Put, "updateMessage", "Change how long a message is hidden", |operation, _| update(operation))
}

fn count(operation: Operation) -> Operation {
    operation
        .about("HEAD does the same.")
        .query("comp", "The requested resource", &json!({"const": "metadata"}), &json!("metadata"))
        .required()
        .answers_empty(
            200,
            "The number",
            &[("x-ms-approximate-messages-count", "The number of messages, including hidden ones")],
        )
        .refuses_xml(Code::InvalidQueryParameterValue, "`comp` is not `metadata`")
}

fn get(operation: Operation, sample: &Sample) -> Operation {
    let text = json!({
        "type": "array",
        "items": {"$ref": "#/components/schemas/QueueMessage"},
        "xml": {"name": "QueueMessagesList", "wrapped": true},
    });
    with_numbers(
        operation
            .about(
                "A message names a pending run: its text is Base64 of `{\"taskId\": ..., \"runId\": ...}`. Received \
                 messages are hidden from others for a while. Peeked messages are not hidden and have no receipt.",
            )
            .query(
                "numofmessages",
                "How many",
                &json!({"type": "integer", "minimum": 1, "maximum": 32, "default": 1}),
                &Value::Null,
            )
            .query(
                "visibilitytimeout",
                "Seconds to hide the messages; the poll URL has 300",
                &json!({"type": "integer", "minimum": 1, "maximum": 604_800, "default": 30}),
                &Value::Null,
            )
            .query("peekonly", "Peek only", &json!({"type": "boolean", "default": false}), &Value::Null)
            .answers_with(200, "The messages", XML, &text, &example(sample).into()),
    )
}

fn update(operation: Operation) -> Operation {
    let text = json!({
        "type": "object",
        "xml": {"name": "QueueMessage"},
        "required": ["MessageText"],
        "properties": {"MessageText": {"type": "string", "description": "As it was got"}},
    });
    named(with_numbers(
        operation
            .about("The text of a message cannot be changed: send it as it was received, or no body.")
            .query(
                "visibilitytimeout",
                "Seconds to hide the message from now",
                &json!({"type": "integer", "minimum": 0, "maximum": 604_800}),
                &json!(300),
            )
            .required()
            .may_take(XML, &text, &json!({"MessageText": "eyJ0YXNrSWQiOiIuLi4iLCJydW5JZCI6MH0="})),
    ))
    .answers_empty(
        204,
        "Done",
        &[("x-ms-popreceipt", "The message's new receipt"), ("x-ms-time-next-visible", "Time when it is shown again")],
    )
    .refuses_xml(Code::InvalidXmlDocument, "the body is not a message")
    .refuses_xml(Code::InvalidXmlNodeValue, "the body would change the message's text")
    .refuses_xml(Code::RequestBodyTooLarge, "the body is over 80 KiB")
}

fn delete(operation: Operation) -> Operation {
    named(operation)
        .about("Delete the message after the run was claimed. A run whose message is deleted can still be claimed.")
        .answers_empty(204, "Done", &[])
}

fn named(operation: Operation) -> Operation {
    operation
        .query(
            "popreceipt",
            "From receiving or updating the message; encode `+` as `%2B`",
            &json!({"type": "string"}),
            &json!(RECEIPT),
        )
        .required()
        .refuses_xml(Code::MissingRequiredQueryParameter, "a parameter is missing")
        .refuses_xml(Code::MessageNotFound, "the run was claimed or has ended, or the message was deleted")
        .refuses_xml(Code::PopReceiptMismatch, "the receipt is not the message's latest one")
}

fn with_numbers(operation: Operation) -> Operation {
    operation
        .refuses_xml(Code::InvalidQueryParameterValue, "a parameter is not a number")
        .refuses_xml(Code::OutOfRangeQueryParameterValue, "a number is too small or too large")
}

fn signature(operation: Operation) -> Operation {
    let text = json!({"type": "string"});
    [
        ("sv", "Version of the signature"),
        ("st", "Start of its validity"),
        ("se", "End of its validity"),
        ("sp", "Permissions: `r` peek and count, `u` update, `p` receive and delete"),
        ("spr", "`https`, if the URL is valid for https only"),
    ]
    .into_iter()
    .fold(operation, |operation, (name, about)| operation.query(name, about, &text, &Value::Null))
}

fn example(sample: &Sample) -> String {
    let date = |minutes| (sample.now + chrono::TimeDelta::minutes(minutes)).format("%a, %d %b %Y %H:%M:%S GMT");
    format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><QueueMessagesList><QueueMessage>\
         <MessageId>00000001-0000-4000-8000-000000000001</MessageId><InsertionTime>{}</InsertionTime>\
         <ExpirationTime>{}</ExpirationTime><PopReceipt>{RECEIPT}</PopReceipt><TimeNextVisible>{}</TimeNextVisible>\
         <DequeueCount>1</DequeueCount><MessageText>eyJ0YXNrSWQiOiIuLi4iLCJydW5JZCI6MH0=</MessageText>\
         </QueueMessage></QueueMessagesList>",
        date(0),
        date(60),
        date(6),
    )
}

/// Written by hand, because messages are XML.
pub(in crate::http) fn message_schema() -> Value {
    let text = |about: &str| json!({"type": "string", "description": about});
    json!({
        "type": "object",
        "xml": {"name": "QueueMessage"},
        "required": ["MessageId", "InsertionTime", "ExpirationTime", "DequeueCount", "MessageText"],
        "properties": {
            "MessageId": text("Identifies the message in its queue, to update and delete it"),
            "InsertionTime": text("When the run became pending, as an HTTP date"),
            "ExpirationTime": text("The task's deadline"),
            "PopReceipt": text("Proves that its holder received the message last; absent with `peekonly`"),
            "TimeNextVisible": text("End of the time for which the message is hidden; absent with `peekonly`"),
            "DequeueCount": {"type": "integer", "description": "How often the message was received"},
            "MessageText": text("Base64 of `{\"taskId\": ..., \"runId\": ...}`"),
        },
    })
}

pub(in crate::http) fn error_schema() -> Value {
    let text = |about: &str| json!({"type": "string", "description": about});
    json!({
        "type": "object",
        "xml": {"name": "Error"},
        "required": ["Code", "Message"],
        "properties": {
            "Code": text("Clients compare this code"),
            "Message": text("The cause; further elements may name the parameter and its limits"),
        },
    })
}
