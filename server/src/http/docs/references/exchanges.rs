//! The reference of the queue's exchanges.

use serde_json::{Map, Value, json};

use super::schemas::Schemas;
use tenure_domain::event_filter::short_name;
use tenure_domain::events::Exchange;

/// Adds the messages' schemas.
pub(super) fn reference(schemas: &mut Schemas<'_>) -> Map<String, Value> {
    let first = Exchange::ALL[0].name();
    let prefix = first.strip_suffix(short_name(first)).unwrap_or_default();
    let reference = json!({
        "apiVersion": "v1",
        "serviceName": "queue",
        "title": "Queue exchanges",
        "description": "State changes of tasks. Each message of a task is also sent with the key `route.<route>` for \
            each of its routes.",
        "exchangePrefix": prefix,
        "entries": Exchange::ALL.map(|exchange| entry(exchange, schemas)),
    });
    reference.as_object().cloned().unwrap_or_default()
}

fn entry(exchange: Exchange, schemas: &mut Schemas<'_>) -> Value {
    let short = short_name(exchange.name());
    let name = in_one_word(short);
    let word = |&(word, required): &(&str, bool)| {
        let (reserved, kind) = (word == "reserved", word == "routingKeyKind");
        let summary = match (reserved, kind) {
            (true, _) => "Reserved; may become several words.".to_owned(),
            (_, true) => "Always `primary`; copies of the message with other keys begin differently.".to_owned(),
            _ if required => format!("The `{word}` of what it is about."),
            _ => format!("The `{word}`, or `_` if there is none."),
        };
        let mut described = json!({"name": word, "summary": summary, "multipleWords": reserved, "required": required});
        if kind {
            described["constant"] = "primary".into();
        }
        described
    };
    json!({
        "type": "topic-exchange",
        "exchange": short,
        "name": name,
        "title": title(short),
        "description": exchange.about(),
        "routingKey": exchange.routing_key().iter().map(word).collect::<Vec<_>>(),
        "schema": schemas.put(&format!("{name}Message"), message(exchange, schemas)),
    })
}

/// The part of the common schema that this exchange uses.
fn message(exchange: Exchange, schemas: &Schemas<'_>) -> Value {
    let mut schema =
        schemas.component(if exchange.is_about_group() { "GroupEventPayload" } else { "TaskEventPayload" });
    let fields = exchange.fields();
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.retain(|name, _| fields.always.iter().chain(fields.sometimes).any(|field| field == name));
    }
    schema["properties"]["version"] = json!({"const": 1, "description": "Of the form of this message."});
    schema["required"] = json!(fields.always);
    schema["additionalProperties"] = false.into();
    schema["description"] = exchange.about().into();
    schema
}

/// Converts `task-defined` to `taskDefined`.
fn in_one_word(name: &str) -> String {
    let mut words = name.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |text, word| text + &title(word))
}

fn title(text: &str) -> String {
    let words = text.split('-').map(|word| {
        let mut letters = word.chars();
        letters.next().map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + letters.as_str())
    });
    words.collect::<Vec<_>>().join(" ")
}
