//! Expectations of answers.

use serde_json::Value;

/// Returns the first difference as an error.
pub fn check(wanted: &Value, got: Option<&Value>, path: &str) -> Result<(), String> {
    let shown = got.map_or_else(|| "nothing".to_owned(), Value::to_string);
    match wanted {
        Value::String(text) if text == "$any" => {
            some(got.is_some_and(|value| !value.is_null()), || format!("{path} is missing"))
        }
        Value::String(text) if text == "$date" => {
            some(got.and_then(Value::as_str).is_some_and(is_date), || format!("{path} is no date: {shown}"))
        }
        Value::Object(keys) if keys.contains_key("$length") => {
            let length = got.and_then(Value::as_array).map(|list| list.len() as u64);
            some(length == keys["$length"].as_u64(), || format!("{path} has another length: {shown}"))
        }
        Value::Object(keys) if keys.contains_key("$contains") => {
            let list = got.and_then(Value::as_array).ok_or_else(|| format!("{path} is no list: {shown}"))?;
            let has = |element: &Value| list.iter().any(|found| check(element, Some(found), path).is_ok());
            let missing = keys["$contains"].as_array().into_iter().flatten().find(|element| !has(element));
            missing.map_or(Ok(()), |element| Err(format!("{path} has nothing like {element}: {shown}")))
        }
        Value::Object(keys) => {
            let found = got.and_then(Value::as_object).ok_or_else(|| format!("{path} is no object: {shown}"))?;
            keys.iter().try_for_each(|(key, value)| {
                let inside = found.get(key);
                if value == "$absent" {
                    return some(inside.is_none(), || format!("{path} has {key}: {shown}"));
                }
                check(value, inside, &format!("{path}.{key}"))
            })
        }
        Value::Array(elements) => {
            let found = got.and_then(Value::as_array).ok_or_else(|| format!("{path} is no list: {shown}"))?;
            some(found.len() == elements.len(), || format!("{path} has another length: {shown}"))?;
            let mut pairs = elements.iter().zip(found).enumerate();
            pairs.try_for_each(|(index, (one, other))| check(one, Some(other), &format!("{path}.{index}")))
        }
        plain => some(got == Some(plain), || format!("{path} is {shown}, not {plain}")),
    }
}

fn some(good: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if good { Ok(()) } else { Err(otherwise()) }
}

/// `YYYY-MM-DDTHH:MM:SS.mmmZ`
fn is_date(text: &str) -> bool {
    let form = "0000-00-00T00:00:00.000Z";
    text.len() == form.len()
        && text
            .chars()
            .zip(form.chars())
            .all(|(one, place)| if place == '0' { one.is_ascii_digit() } else { one == place })
}
