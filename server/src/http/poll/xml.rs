//! Bodies of the poll API.

use std::borrow::Cow;
use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesText, Event};
use serde::{Deserialize, Serialize};
use tenure_api::ids::SlugId;
use uuid::Uuid;

use super::error::{Code, PollError};
use tenure_store::hot::messages::Got;
use tenure_store::messages::Peeked;

/// Azure's date format, RFC 1123.
pub(super) fn http_date(time: DateTime<Utc>) -> String {
    time.format("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// No other fields: old workers pass them as arguments of a function.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    task_id: Option<SlugId>,
    run_id: i16,
}

fn text(task: Uuid, run: i16) -> io::Result<String> {
    let content = Content { task_id: SlugId::from_uuid(task), run_id: run };
    Ok(STANDARD.encode(serde_json::to_vec(&content)?))
}

fn document(write: impl FnOnce(&mut Writer<Vec<u8>>) -> io::Result<()>) -> io::Result<String> {
    let mut writer = Writer::new(Vec::new());
    writer.write_event(Event::Decl(BytesDecl::new("1.0", Some("utf-8"), None)))?;
    write(&mut writer)?;
    String::from_utf8(writer.into_inner()).map_err(io::Error::other)
}

fn element(writer: &mut Writer<Vec<u8>>, name: &str, value: &str) -> io::Result<()> {
    let value = if value.contains(is_not_xml) {
        Cow::Owned(value.replace(is_not_xml, "\u{fffd}"))
    } else {
        Cow::Borrowed(value)
    };
    writer.create_element(name).write_text_content(BytesText::new(&value))?;
    Ok(())
}

/// True for characters forbidden even escaped: XML 1.0, production 2.
fn is_not_xml(character: char) -> bool {
    !matches!(character, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

fn list<T>(messages: &[T], write: impl Fn(&mut Writer<Vec<u8>>, &T) -> io::Result<()>) -> io::Result<String> {
    document(|writer| {
        if messages.is_empty() {
            // Azure's form, with the space.
            writer.get_mut().extend_from_slice(b"<QueueMessagesList />");
            return Ok(());
        }
        writer.create_element("QueueMessagesList").write_inner_content(|writer| {
            for message in messages {
                writer.create_element("QueueMessage").write_inner_content(|writer| write(writer, message))?;
            }
            Ok(())
        })?;
        Ok(())
    })
}

pub(super) fn got(messages: &[Got]) -> io::Result<String> {
    list(messages, |writer, got| {
        element(writer, "MessageId", &got.message.to_uuid().to_string())?;
        element(writer, "InsertionTime", &http_date(got.scheduled))?;
        element(writer, "ExpirationTime", &http_date(got.deadline))?;
        element(writer, "PopReceipt", &got.receipt.to_string())?;
        element(writer, "TimeNextVisible", &http_date(got.hidden_until))?;
        element(writer, "DequeueCount", &got.dequeued.to_string())?;
        element(writer, "MessageText", &text(got.task, got.message.run)?)
    })
}

pub(super) fn peeked(messages: &[Peeked]) -> io::Result<String> {
    list(messages, |writer, peeked| {
        element(writer, "MessageId", &peeked.message.to_uuid().to_string())?;
        element(writer, "InsertionTime", &http_date(peeked.scheduled))?;
        element(writer, "ExpirationTime", &http_date(peeked.deadline))?;
        element(writer, "DequeueCount", &peeked.dequeued.to_string())?;
        element(writer, "MessageText", &text(peeked.task, peeked.message.run)?)
    })
}

pub(super) fn error(code: &str, message: &str, details: &[(&'static str, String)]) -> io::Result<String> {
    document(|writer| {
        writer.create_element("Error").write_inner_content(|writer| {
            element(writer, "Code", code)?;
            element(writer, "Message", message)?;
            details.iter().try_for_each(|(name, value)| element(writer, name, value))
        })?;
        Ok(())
    })
}

#[derive(Deserialize)]
struct QueueMessage {
    #[serde(rename = "MessageText")]
    text: String,
}

/// A message contains its run, which cannot be changed.
pub(super) fn check_update(body: &[u8], task: Uuid, run: i16) -> Result<(), PollError> {
    let given: QueueMessage = quick_xml::de::from_reader(body).map_err(|error| {
        let message = format!("the body must be <QueueMessage><MessageText>...</MessageText></QueueMessage>: {error}");
        PollError::new(Code::InvalidXmlDocument, message)
    })?;
    if given.text.trim() == text(task, run)? {
        return Ok(());
    }
    let message = "a message's text cannot be changed: send it as it was received, or no body";
    Err(PollError::new(Code::InvalidXmlNodeValue, message).with("XmlNodeName", "MessageText"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_text_has_task_and_run_only() {
        let id: SlugId = "fN1SbArXTPSVFNUvaOlinQ".parse().unwrap();
        let decoded = STANDARD.decode(text(id.uuid(), 3).unwrap()).unwrap();
        assert_eq!(decoded, br#"{"taskId":"fN1SbArXTPSVFNUvaOlinQ","runId":3}"#);
    }

    #[test]
    fn empty_list_and_error_have_azures_form() {
        assert_eq!(got(&[]).unwrap(), r#"<?xml version="1.0" encoding="utf-8"?><QueueMessagesList />"#);
        let details = [("QueryParameterName", "<x>\u{1}\u{ffff}\t\u{1f600}".to_owned())];
        assert_eq!(
            error("SomeCode", "a & b", &details).unwrap(),
            r#"<?xml version="1.0" encoding="utf-8"?><Error><Code>SomeCode</Code><Message>a &amp; b</Message><QueryParameterName>&lt;x&gt;��	😀</QueryParameterName></Error>"#
        );
    }

    #[test]
    fn update_must_not_change_message_text() {
        let task = SlugId::from_random(Uuid::new_v4().into_bytes()).uuid();
        let body = |text: &str| {
            format!(
                "\u{feff}<?xml version='1.0' encoding='utf-8'?>\n<QueueMessage><MessageText>{text}</MessageText></QueueMessage>"
            )
        };
        assert!(check_update(body(&text(task, 0).unwrap()).as_bytes(), task, 0).is_ok());
        let code = |body: &str| check_update(body.as_bytes(), task, 0).err().map(|error| error.code);
        assert_eq!(code(&body(&text(task, 1).unwrap())), Some(Code::InvalidXmlNodeValue));
        assert_eq!(code(&body("")), Some(Code::InvalidXmlNodeValue));
        for bad in ["<", "<a/>", "<QueueMessage>", "{}", "<QueueMessage><MessageText>&x;</MessageText></QueueMessage>"]
        {
            assert_eq!(code(bad), Some(Code::InvalidXmlDocument), "{bad}");
        }
    }
}
