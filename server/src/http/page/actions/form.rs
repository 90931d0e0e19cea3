//! Forms of actions: reads the sent fields, and shows refused ones again.

use std::time::Duration;

use axum::body::Body;
use chrono::{DateTime, TimeDelta, Utc};
use futures_util::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use maud::{Markup, html};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure_api::dates::Timestamp;
use tenure_api::states::Priority;

use super::{Action, Failed, Order};
use crate::http::body::{self, BudgetedBody};
use crate::http::budget::{Reservation, Share};
use crate::http::page::error::PageError;
use crate::http::page::layout::Page;
use crate::http::page::pause;
use crate::http::page::state::Site;
use crate::http::page::visit::{Visit, is_from_us, read_query};
use tenure_store::clock;

/// In bytes: room for the payload of the largest definition that a form shows, escaped.
const SENT_MAX: usize = 2 << 20;
const SENT_TIMEOUT: Duration = Duration::from_secs(20);
const FORM_TYPE: &str = "application/x-www-form-urlencoded";
/// In minutes, as for pauses.
const YEAR: (i64, &str) = (525_600, "a year from now");
pub(super) const PRIORITY: &str = "newPriority";

/// Fields of a sent form.
#[derive(Default)]
pub(super) struct Fields {
    pairs: Vec<(String, String)>,
    /// Budget share of the form.
    _reservation: Option<Reservation>,
}

impl Fields {
    fn find(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Values of a field that the form may repeat.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.trim())
    }

    /// Trimmed; empty if missing.
    pub(super) fn text(&self, name: &str) -> &str {
        self.find(name).unwrap_or_default().trim()
    }

    pub(super) fn non_empty(&self, name: &str) -> Option<&str> {
        Some(self.text(name)).filter(|text| !text.is_empty())
    }

    /// Parses a number, date or other text as the API does.
    pub(super) fn parse<T: DeserializeOwned>(&self, name: &str, what: &str) -> Result<Option<T>, Failed> {
        let Some(text) = self.non_empty(name) else { return Ok(None) };
        let number = serde_json::from_str::<Value>(text).ok().filter(Value::is_number);
        let read = number.and_then(|number| serde_json::from_value(number).ok());
        let read = read.or_else(|| serde_json::from_value(Value::from(text)).ok());
        read.map(Some).ok_or_else(|| Failed::input(format!("`{name}` must be {what}")))
    }

    pub(super) fn whole(&self, name: &str) -> Result<Option<i64>, Failed> {
        self.parse(name, "a whole number")
    }

    pub(super) fn date(&self, name: &str) -> Result<Option<Timestamp>, Failed> {
        self.parse(name, "a date such as 2027-01-31T12:00:00Z")
    }

    pub(super) fn priority(&self) -> Result<Priority, Failed> {
        let read = self.parse(PRIORITY, "one of the offered priorities")?;
        read.ok_or_else(|| Failed::input(format!("`{PRIORITY}` must be one of the offered priorities")))
    }

    /// The time of a [`Field::until`].
    pub(super) fn until(&self, name: &str, now: DateTime<Utc>) -> Result<DateTime<Utc>, Failed> {
        let text = self.text(name);
        let chosen = times().find(|(offered, _)| offered.to_string() == text);
        let (minutes, _) = chosen.ok_or_else(|| Failed::input(format!("`{name}` must be one of the offered times")))?;
        Ok(now + TimeDelta::minutes(minutes))
    }
}

fn times() -> impl Iterator<Item = (i64, &'static str)> {
    pause::TIMES.into_iter().chain([YEAR])
}

/// The database's time.
pub(super) async fn now(app: &Site) -> Result<DateTime<Utc>, sqlx::Error> {
    clock::get_now(&mut *app.engine.pool.acquire().await?).await
}

/// Reads a form of this session, sent from our own page.
pub(super) async fn read(app: &Site, visit: &Visit, headers: &HeaderMap, body: Body) -> Result<Fields, PageError> {
    let Some(session) = visit.session.as_ref().filter(|_| is_from_us(app, headers)) else {
        body::pass_over(headers, body).await;
        return Err(pause::foreign_form());
    };
    let is_form = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(FORM_TYPE.as_bytes()));
    let reading = body::read(&app.intake.bodies, Share::Authenticated, SENT_MAX, headers, body);
    let read = tokio::time::timeout(SENT_TIMEOUT, reading).await;
    let (true, Ok(Ok(BudgetedBody { bytes, reservation }))) = (is_form, read) else { return Err(unreadable()) };
    let text = std::str::from_utf8(&bytes).map_err(|_| unreadable())?;
    let sent = Fields { pairs: read_query(text), _reservation: reservation };
    if !session.form_token.matches(sent.text("token")) {
        return Err(pause::foreign_form());
    }
    Ok(sent)
}

fn unreadable() -> PageError {
    let message = format!("The form could not be read, or has more than {SENT_MAX} bytes. Go back and send it again.");
    PageError::Refused(StatusCode::BAD_REQUEST, message)
}

pub(super) struct Form {
    /// The effect of the action, and the number of affected objects.
    about: Markup,
    fields: Vec<Field>,
    button: &'static str,
}

impl Form {
    pub(super) fn new(button: &'static str, about: Markup) -> Self {
        Self { about, fields: Vec::new(), button }
    }

    pub(super) fn with(self, fields: impl IntoIterator<Item = Field>) -> Self {
        Self { fields: fields.into_iter().collect(), ..self }
    }
}

/// A form that needs no further read.
pub(super) fn ready<'a>(form: Result<Form, PageError>) -> BoxFuture<'a, Result<Form, PageError>> {
    Box::pin(std::future::ready(form))
}

enum Input {
    Line,
    /// With proposals for the input.
    Proposals(Vec<String>),
    Text,
    /// Values and their words.
    Choice(Vec<(String, String)>),
    Hidden,
}

/// A field, named as in the API.
pub(super) struct Field {
    name: &'static str,
    label: &'static str,
    input: Input,
    value: String,
    hint: &'static str,
}

impl Field {
    fn new(name: &'static str, label: &'static str, input: Input) -> Self {
        Self { name, label, input, value: String::new(), hint: "" }
    }

    pub(super) fn line(name: &'static str, label: &'static str) -> Self {
        Self::new(name, label, Input::Line)
    }

    pub(super) fn proposals(name: &'static str, label: &'static str, proposals: Vec<String>) -> Self {
        Self::new(name, label, Input::Proposals(proposals))
    }

    pub(super) fn text(name: &'static str, label: &'static str) -> Self {
        Self::new(name, label, Input::Text)
    }

    pub(super) fn choice(name: &'static str, label: &'static str, choices: Vec<(String, String)>) -> Self {
        Self::new(name, label, Input::Choice(choices))
    }

    pub(super) fn hidden(name: &'static str, value: impl Into<String>) -> Self {
        Self::new(name, "", Input::Hidden).value(value)
    }

    pub(super) fn priority(current: Priority) -> Self {
        let words = |priority: &Priority| (priority.to_string(), priority.to_string());
        Self::choice(PRIORITY, "Priority", Priority::ALL.iter().map(words).collect()).value(current.as_str())
    }

    pub(super) fn until(name: &'static str) -> Self {
        Self::choice(name, "Until", times().map(|(minutes, words)| (minutes.to_string(), words.to_owned())).collect())
    }

    pub(super) fn value(self, value: impl Into<String>) -> Self {
        Self { value: value.into(), ..self }
    }

    pub(super) fn hint(self, hint: &'static str) -> Self {
        Self { hint, ..self }
    }

    fn show(&self, sent: &Fields, wrong: Option<&str>, has_focus: bool) -> Markup {
        let Self { name, label, input, value, hint } = self;
        let value = sent.find(name).unwrap_or(value);
        let invalid = wrong.map(|_| "true");
        let described = wrong.map(|_| "wrong");
        let list = format!("{name}-list");
        html! {
            @if !matches!(input, Input::Hidden) {
                label for=(name) { (label) @if !hint.is_empty() { " " span.dim { (hint) } } }
            }
            @match input {
                Input::Hidden => { input type="hidden" name=(name) value=(value); }
                Input::Line => {
                    input id=(name) name=(name) value=(value) autocomplete="off" autofocus[has_focus] aria-invalid=[invalid] aria-describedby=[described];
                }
                Input::Proposals(proposals) => {
                    input id=(name) name=(name) value=(value) list=(list) autocomplete="off" autofocus[has_focus] aria-invalid=[invalid] aria-describedby=[described];
                    datalist id=(list) { @for proposal in proposals { option value=(proposal) {} } }
                }
                // A browser drops a line feed at the start.
                Input::Text => {
                    textarea id=(name) name=(name) rows="16" spellcheck="false" autofocus[has_focus] aria-invalid=[invalid] aria-describedby=[described] { "\n" (value) }
                }
                Input::Choice(choices) => {
                    select id=(name) name=(name) autofocus[has_focus] aria-invalid=[invalid] aria-describedby=[described] {
                        @for (choice, words) in choices { option value=(choice) selected[choice == value] { (words) } }
                    }
                }
            }
            @if let Some(wrong) = wrong { p.error #wrong role="alert" { (with_code(wrong)) } }
        }
    }
}

/// Asks again after input whose consequences are shown.
pub(super) struct Review {
    pub about: Markup,
    /// Sent back with the same input.
    pub reviewed: String,
    pub button: &'static str,
}

/// Name of the hidden field with [`Review::reviewed`].
pub(super) const REVIEWED: &str = "reviewed";

pub(super) enum Notice {
    Wrong(String),
    Review(Review),
}

/// Shows text in backticks as code.
fn with_code(text: &str) -> Markup {
    html! { @for (index, part) in text.split('`').enumerate() { @if index % 2 == 1 { code { (part) } } @else { (part) } } }
}

pub(super) fn page(action: &Action, order: &Order<'_>, form: &Form, notice: Option<&Notice>) -> Page {
    let Order { visit, subject, sent, .. } = order;
    let Form { about, fields, button } = form;
    let (wrong, review) = match notice {
        Some(Notice::Wrong(message)) => (Some(message.as_str()), None),
        Some(Notice::Review(review)) => (None, Some(review)),
        None => (None, None),
    };
    let of = wrong.and_then(|message| fields.iter().position(|field| message.contains(&format!("`{}`", field.name))));
    let focus = of.or_else(|| fields.iter().position(|field| !matches!(field.input, Input::Hidden)));
    let token = visit.session.as_ref().map_or("", |session| session.form_token.as_str());
    let title = action.label.trim_end_matches('…');
    let body = html! { section.panel.form.wide {
        h1 { span.kind { (title) } (subject.name()) }
        (about)
        @if let Some(message) = wrong.filter(|_| of.is_none()) { p.error role="alert" { (with_code(message)) } }
        form method="post" action=(subject.action_link(visit, action.name)) {
            input type="hidden" name="token" value=(token);
            @for (index, field) in fields.iter().enumerate() {
                (field.show(sent, wrong.filter(|_| of == Some(index)), focus == Some(index) && review.is_none()))
            }
            @match review {
                Some(Review { about, reviewed, button }) => {
                    div.review role="status" { (about) }
                    input type="hidden" name=(REVIEWED) value=(reviewed);
                    button type="submit" autofocus { (button) }
                }
                None => { button type="submit" autofocus[focus.is_none()] { (button) } }
            }
        }
        a.button href=(subject.link(visit)) { "Back" }
        @if let Some(command) = (action.command)(subject) {
            p.dim { "As a command:" }
            pre tabindex="0" { "tenure " (command) }
        }
    } };
    Page::new(format!("{title}: {}", subject.title()), None, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(pairs: &[(&str, &str)]) -> Fields {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Fields { pairs, _reservation: None }
    }

    #[test]
    fn refused_field_keeps_its_input_and_shows_message() {
        let fields = sent(&[("weight", "<x>")]);
        let Err(Failed::Form(status, message)) = fields.parse::<f64>("weight", "a number") else {
            panic!("it is read")
        };
        assert_eq!((status, message.as_str()), (StatusCode::BAD_REQUEST, "`weight` must be a number"));
        let shown = Field::line("weight", "Weight").show(&fields, Some(&message), true).0;
        assert!(shown.contains("value=\"&lt;x&gt;\""), "{shown}");
        assert!(shown.contains("aria-invalid=\"true\""), "{shown}");
        assert!(shown.contains("<code>weight</code> must be a number"), "{shown}");
    }

    #[test]
    fn empty_fields_are_absent() {
        let fields = sent(&[("concurrency", " "), ("weight", "2.5"), ("until", "2027-01-31T12:00:00Z")]);
        assert!(matches!(fields.whole("concurrency"), Ok(None)));
        assert!(matches!(fields.whole("missing"), Ok(None)));
        assert_eq!(fields.parse::<f64>("weight", "a number").ok(), Some(Some(2.5)));
        assert!(matches!(fields.date("until"), Ok(Some(_))));
        assert!(fields.whole("weight").is_err() && fields.date("weight").is_err());
    }

    #[test]
    fn offered_times_are_accepted() {
        let now = DateTime::UNIX_EPOCH;
        let until = |minutes: &str| sent(&[("until", minutes)]).until("until", now).ok();
        assert_eq!(until("15"), Some(now + TimeDelta::minutes(15)));
        assert_eq!([until("16"), until("")], [None, None]);
    }
}
