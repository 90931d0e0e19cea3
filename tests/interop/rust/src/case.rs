//! One case with its values: placeholders and steps, as ../../README.md describes them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Map, Value, json};
use taskcluster::chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use taskcluster::{Credentials, err_status_code};

use crate::calls::{Arguments, Service};
use crate::{NAME, fits};

const EVENTUALLY: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(100);
const SIGNED_URL_SECONDS: u64 = 3600;
const TEMPORARY_FOR: Duration = Duration::from_secs(3600);
const KINDS: [&str; 7] =
    ["call", "paginate", "signedUrl", "temporaryCredentials", "uploadObject", "downloadArtifact", "http"];

pub struct Case<'a> {
    case: &'a Value,
    templates: &'a Value,
    root_url: &'a str,
    values: HashMap<String, Value>,
    began: DateTime<Utc>,
    http: reqwest::Client,
}

impl<'a> Case<'a> {
    pub fn new(case: &'a Value, templates: &'a Value, root_url: &'a str, root: &Value) -> anyhow::Result<Self> {
        let unique = unique_digits();
        let mut values: HashMap<String, Value> = case["values"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        for name in case["slugids"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            values.insert(name.to_owned(), json!(slugid::nice()));
        }
        values.insert("root".to_owned(), root.clone());
        values.insert("rootUrl".to_owned(), json!(root_url));
        values.insert("provisionerId".to_owned(), json!("interop"));
        values.insert("workerType".to_owned(), json!(format!("q{unique}")));
        values.insert("queueId".to_owned(), json!(format!("interop/q{unique}")));
        values.insert("unique".to_owned(), json!(unique));
        let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
        Ok(Self { case, templates, root_url, values, began: Utc::now(), http })
    }

    pub async fn run(&mut self) -> Result<(), String> {
        for (index, step) in self.case["steps"].as_array().into_iter().flatten().enumerate() {
            if lacks(step) {
                continue;
            }
            for _ in 0..step["times"].as_u64().unwrap_or(1) {
                let done = self.perform(step).await;
                done.map_err(|error| format!("step {} ({}): {error:#}", index + 1, step[kind(step)]))?;
            }
        }
        Ok(())
    }

    async fn perform(&mut self, step: &Value) -> anyhow::Result<()> {
        let began = Instant::now();
        let answer = loop {
            self.values.insert("fresh".to_owned(), json!(slugid::nice()));
            let filled = self.fill(step)?;
            match self.answer(&filled).await {
                Ok(answer) => break answer,
                Err(error) if step["eventually"] != true || began.elapsed() > EVENTUALLY => return Err(error),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        };
        for (name, path) in step["save"].as_object().into_iter().flatten() {
            let found = inside(&answer, path.as_str().unwrap_or_default())?.clone();
            self.values.insert(name.clone(), found);
        }
        Ok(())
    }

    async fn answer(&self, step: &Value) -> anyhow::Result<Value> {
        let answer = match kind(step) {
            "call" => self.call(step).await,
            "paginate" => self.paginate(step).await.map(Some),
            "signedUrl" => self.signed_url(step).map(Some),
            "temporaryCredentials" => self.temporary_credentials(step).map(Some),
            "uploadObject" => self.upload_object(step).await.map(|()| None),
            "downloadArtifact" => self.download_artifact(step).await.map(Some),
            _ => self.request(&step["http"]).await.map(Some),
        };
        match (answer, step.get("error")) {
            (Ok(answer), None) => {
                if let (Some(answer), Some(wanted)) = (&answer, step.get("expect")) {
                    fits::check(wanted, Some(answer), "the answer").map_err(|what| anyhow!(what))?;
                }
                Ok(answer.unwrap_or_default())
            }
            (Ok(answer), Some(_)) => bail!("no error, but {answer:?}"),
            (Err(error), None) => Err(error),
            (Err(error), Some(wanted)) => {
                // The client's error has the status, and the message as its context; it does not
                // keep the code.
                let status = err_status_code(&error).ok_or_else(|| anyhow!("not an error of the server: {error:#}"))?;
                if wanted["status"] != json!(status.as_u16()) {
                    bail!("the error's status is {status}, not {}: {error:#}", wanted["status"]);
                }
                if !error.to_string().contains(wanted["message"].as_str().unwrap_or_default()) {
                    bail!("the error does not say {}: {error:#}", wanted["message"]);
                }
                Ok(Value::Null)
            }
        }
    }

    fn service(&self, step: &Value) -> anyhow::Result<Service> {
        self.service_named(step["service"].as_str().unwrap_or("queue"), step)
    }

    fn service_named(&self, name: &str, step: &Value) -> anyhow::Result<Service> {
        let strings = |list: &Vec<Value>| list.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        let scopes = step["authorizedScopes"].as_array().map(strings);
        Service::new(name, self.root_url, self.credentials(step)?, scopes)
    }

    fn credentials(&self, step: &Value) -> anyhow::Result<Option<Credentials>> {
        let name = step["as"].as_str().unwrap_or("anonymous");
        if name == "anonymous" {
            return Ok(None);
        }
        let credentials = self.values.get(name).ok_or_else(|| anyhow!("there is no value {name}"))?;
        let text = |key: &str| credentials[key].as_str().unwrap_or_default();
        Ok(Some(match credentials["certificate"].as_str() {
            Some(certificate) => Credentials::new_with_certificate(text("clientId"), text("accessToken"), certificate),
            None => Credentials::new(text("clientId"), text("accessToken")),
        }))
    }

    async fn call(&self, step: &Value) -> anyhow::Result<Option<Value>> {
        let method = step["call"].as_str().unwrap_or_default();
        self.service(step)?.call(method, &Arguments::of(step)).await
    }

    async fn paginate(&self, step: &Value) -> anyhow::Result<Value> {
        let service = self.service(step)?;
        let text = |key: &str| step[key].as_str().unwrap_or_default();
        let mut pages: Vec<Value> = Vec::new();
        loop {
            let token = pages.last().and_then(|page| page["continuationToken"].as_str());
            if !pages.is_empty() && token.is_none() {
                break;
            }
            let page = service.call(text("paginate"), &Arguments::of(step).after(token)).await?;
            pages.push(page.context("the method returns nothing")?);
        }
        let mut found = Vec::new();
        for element in pages.iter().filter_map(|page| page[text("items")].as_array()).flatten() {
            found.push(inside(element, text("unique"))?.to_string());
        }
        let count = found.len();
        found.sort();
        found.dedup();
        Ok(json!({"pages": pages.len(), "count": count, "distinct": found.len()}))
    }

    fn signed_url(&self, step: &Value) -> anyhow::Result<Value> {
        let lasts = Duration::from_secs(step["seconds"].as_u64().unwrap_or(SIGNED_URL_SECONDS));
        let method = step["signedUrl"].as_str().unwrap_or_default();
        Ok(json!(self.service(step)?.signed_url(method, &Arguments::of(step), lasts)?))
    }

    fn temporary_credentials(&self, step: &Value) -> anyhow::Result<Value> {
        let wanted = &step["temporaryCredentials"];
        let issuer = self.credentials(step)?.context("temporary credentials need an issuer")?;
        let scopes: Vec<&str> = wanted["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let made = match wanted["clientId"].as_str() {
            Some(name) => issuer.create_named_temp_creds(name, TEMPORARY_FOR, scopes)?,
            None => issuer.create_temp_creds(TEMPORARY_FOR, scopes)?,
        };
        Ok(json!({"clientId": made.client_id, "accessToken": made.access_token, "certificate": made.certificate}))
    }

    async fn upload_object(&self, step: &Value) -> anyhow::Result<()> {
        let Service::Object(object) = self.service_named("object", step)? else {
            bail!("this is not the object service")
        };
        let what = &step["uploadObject"];
        let text = |key: &str| what[key].as_str().unwrap_or_default();
        let times = what["times"].as_u64().unwrap_or(1).try_into()?;
        let content = text("text").repeat(times);
        taskcluster_upload::upload_from_buf(
            text("projectId"),
            text("name"),
            text("contentType"),
            &text("expires").parse()?,
            content.as_bytes(),
            &taskcluster::Retry::default(),
            &object,
            text("uploadId"),
        )
        .await
    }

    async fn download_artifact(&self, step: &Value) -> anyhow::Result<Value> {
        let Service::Queue(queue) = self.service(step)? else { bail!("artifacts are the queue's") };
        let what = &step["downloadArtifact"];
        let text = |key: &str| what[key].as_str().unwrap_or_default();
        let retry = taskcluster::Retry::default();
        let (content, content_type) = taskcluster_download::download_artifact_to_vec(
            text("taskId"),
            what["runId"].as_str(),
            text("name"),
            &retry,
            &queue,
        )
        .await?;
        let size = content.len();
        Ok(json!({"text": String::from_utf8(content)?, "contentType": content_type, "size": size}))
    }

    async fn request(&self, wanted: &Value) -> anyhow::Result<Value> {
        let text = |key: &str| wanted[key].as_str().unwrap_or_default();
        let mut request = self.http.request(text("method").parse()?, text("url")).body(text("body").to_owned());
        for (name, value) in wanted["headers"].as_object().into_iter().flatten() {
            request = request.header(name, value.as_str().unwrap_or_default());
        }
        let response = request.send().await?;
        let status = response.status().as_u16();
        let headers: Map<String, Value> = response
            .headers()
            .iter()
            .map(|(name, value)| (name.to_string(), json!(String::from_utf8_lossy(value.as_bytes()))))
            .collect();
        let text = response.text().await?;
        let mut answer = json!({"status": status, "headers": headers, "text": text});
        if answer["headers"]["content-type"].as_str().is_some_and(|kind| kind.starts_with("application/json")) {
            answer["json"] = serde_json::from_str(&text)?;
        }
        Ok(answer)
    }

    fn fill(&self, value: &Value) -> anyhow::Result<Value> {
        Ok(match value {
            Value::String(text) => self.fill_text(text)?,
            Value::Array(elements) => {
                Value::Array(elements.iter().map(|one| self.fill(one)).collect::<anyhow::Result<_>>()?)
            }
            Value::Object(keys) => match (keys.get("$template"), keys.get("$times")) {
                (Some(template), _) => {
                    let mut merged = self.templates[template.as_str().unwrap_or_default()].clone();
                    for (key, change) in keys.iter().filter(|(key, _)| *key != "$template") {
                        merged[key] = change.clone();
                    }
                    self.fill(&merged)?
                }
                (None, Some(times)) => {
                    let each = keys["each"].as_str().unwrap_or_default();
                    (1..=times.as_u64().unwrap_or_default())
                        .map(|number| each.replace("${number}", &number.to_string()))
                        .collect()
                }
                (None, None) => {
                    let mut filled = Map::new();
                    for (key, element) in keys {
                        let key = self.fill_text(key)?;
                        filled.insert(key.as_str().unwrap_or_default().to_owned(), self.fill(element)?);
                    }
                    Value::Object(filled)
                }
            },
            other => other.clone(),
        })
    }

    fn fill_text(&self, text: &str) -> anyhow::Result<Value> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, name, after)) = placeholder(rest) {
            let value = self.value(name)?;
            if before.is_empty() && after.is_empty() && filled.is_empty() {
                return Ok(value);
            }
            filled.push_str(before);
            filled.push_str(&value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            rest = after;
        }
        Ok(json!(filled + rest))
    }

    fn value(&self, name: &str) -> anyhow::Result<Value> {
        if let Some(seconds) = name.strip_prefix("now").and_then(|seconds| seconds.parse().ok()) {
            let moment = self.began + TimeDelta::seconds(seconds);
            return Ok(json!(moment.to_rfc3339_opts(SecondsFormat::Millis, true)));
        }
        let (name, path) = name.split_once('.').unwrap_or((name, ""));
        let value = self.values.get(name).ok_or_else(|| anyhow!("there is no value {name}"))?;
        inside(value, path).cloned()
    }
}

/// Splits off the text before the first placeholder, its name, and the rest.
fn placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("${")?;
    let (name, after) = rest.split_once('}')?;
    Some((before, name, after))
}

fn inside<'a>(value: &'a Value, path: &str) -> anyhow::Result<&'a Value> {
    path.split('.').filter(|key| !key.is_empty()).try_fold(value, |outer, key| {
        let found = key.parse::<usize>().ok().and_then(|index| outer.get(index)).or_else(|| outer.get(key));
        found.ok_or_else(|| anyhow!("there is no {path} in {value}"))
    })
}

fn kind(step: &Value) -> &'static str {
    KINDS
        .into_iter()
        .find(|kind| step.get(kind).is_some())
        .unwrap_or_else(|| panic!("a step that does nothing: {step}"))
}

pub fn lacks(what: &Value) -> bool {
    what["lacking"].as_array().into_iter().flatten().any(|client| client == NAME)
}

fn unique_digits() -> String {
    slugid::nice().bytes().take(6).map(|byte| format!("{byte:02x}")).collect()
}
