//! XML of the poll API.

use quick_xml::DeError;
use serde::Deserialize;

/// Some servers begin documents with it.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// By the name of the root element; others are refused.
#[derive(Deserialize)]
enum Document {
    QueueMessagesList(List),
    Error(Explanation),
}

#[derive(Deserialize)]
struct List {
    #[serde(rename = "QueueMessage", default)]
    messages: Vec<MessageXml>,
}

#[derive(Deserialize, Debug, PartialEq, Eq)]
#[serde(rename_all = "PascalCase")]
pub(super) struct MessageXml {
    pub message_id: String,
    pub pop_receipt: String,
    pub dequeue_count: u32,
    pub message_text: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Explanation {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

pub(super) fn messages(text: &str) -> Result<Vec<MessageXml>, DeError> {
    match document(text)? {
        Document::QueueMessagesList(list) => Ok(list.messages),
        Document::Error(_) => Err(DeError::Custom("an error instead of a list of messages".into())),
    }
}

/// Code and message of an error; empty for other texts.
pub(super) fn explanation(text: &str) -> (String, String) {
    match document(text) {
        Ok(Document::Error(explanation)) => (explanation.code, explanation.message),
        Ok(Document::QueueMessagesList(_)) | Err(_) => Default::default(),
    }
}

fn document(text: &str) -> Result<Document, DeError> {
    quick_xml::de::from_str(text.trim_start_matches(BYTE_ORDER_MARK))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECLARATION: &str = r#"<?xml version="1.0" encoding="utf-8"?>"#;

    fn message(id: &str, text: &str) -> String {
        format!(
            "<QueueMessage><MessageId>{id}</MessageId><InsertionTime>Thu, 09 May 2019 01:19:44 GMT</InsertionTime>\
             <ExpirationTime>Thu, 16 May 2019 01:19:44 GMT</ExpirationTime><PopReceipt>A+/b=</PopReceipt>\
             <TimeNextVisible>Thu, 09 May 2019 01:24:44 GMT</TimeNextVisible><DequeueCount>3</DequeueCount>\
             <MessageText>{text}</MessageText></QueueMessage>"
        )
    }

    fn entry(id: &str, text: &str) -> MessageXml {
        MessageXml { message_id: id.into(), pop_receipt: "A+/b=".into(), dequeue_count: 3, message_text: text.into() }
    }

    #[test]
    fn list_keeps_order_and_entities() {
        let (one, two) = (message("1", "e30="), message("&lt;2&gt;", "a &amp; b"));
        let list = format!("{DECLARATION}<QueueMessagesList>{one}\n  {two}</QueueMessagesList>");
        let read = messages(&list).unwrap();
        assert_eq!(read, [entry("1", "e30="), entry("<2>", "a & b")]);
    }

    #[test]
    fn empty_list_has_three_forms() {
        for empty in ["<QueueMessagesList />", "<QueueMessagesList></QueueMessagesList>", "<QueueMessagesList/>\n"] {
            assert_eq!(messages(&format!("{DECLARATION}{empty}")).unwrap(), []);
            assert_eq!(messages(&format!("\u{feff}{DECLARATION}{empty}")).unwrap(), []);
        }
    }

    #[test]
    fn message_may_have_no_text() {
        let list = format!("<QueueMessagesList>{}</QueueMessagesList>", message("1", ""));
        assert_eq!(messages(&list).unwrap(), [entry("1", "")]);
    }

    #[test]
    fn other_xml_is_refused() {
        let cut = format!("<QueueMessagesList>{}", message("1", "e30="));
        let no_receipt = "<QueueMessagesList><QueueMessage><MessageId>1</MessageId><DequeueCount>1</DequeueCount>\
                          <MessageText>x</MessageText></QueueMessage></QueueMessagesList>";
        let error = "<Error><Code>ServerBusy</Code><Message>later</Message></Error>";
        for text in ["", "{}", "busy", "<html><body>busy</body></html>", "<QueueMessagesList>", &cut, no_receipt, error]
        {
            assert!(messages(text).is_err(), "{text}");
        }
    }
}
