//! Client of Chainscope's HTTP API.

use std::{
    io::{BufRead as _, BufReader, Read},
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde_json::Value;

/// The API of one server.
#[derive(Clone)]
pub(crate) struct Api {
    base: String,
    agent: ureq::Agent,
}

impl Api {
    /// A client of the server at `base`: a URL without a path, or with the prefix of a node.
    pub(crate) fn new(base: &str) -> Self {
        let agent = ureq::Agent::config_builder()
            .timeout_connect(Some(Duration::from_secs(5)))
            .http_status_as_error(false)
            .build()
            .new_agent();
        Self { base: base.trim_end_matches('/').to_owned(), agent }
    }

    /// Returns the response body as text.
    pub(crate) fn text(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<String> {
        let mut text = String::new();
        self.get(path, query)?.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Returns the response body as JSON.
    pub(crate) fn json(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<Value> {
        let text = self.text(path, query)?;
        serde_json::from_str(&text).with_context(|| format!("{}{path} did not return JSON", self.base))
    }

    /// Calls `each` with the data of every server-sent event until the server ends the stream.
    pub(crate) fn events(
        &self,
        path: &str,
        query: &[(&str, String)],
        mut each: impl FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut data = String::new();
        for line in BufReader::new(self.get(path, query)?).lines() {
            let line = line?;
            if let Some(rest) = line.strip_prefix("data:") {
                if !data.is_empty() {
                    data.push('\n');
                }
                data.push_str(rest.strip_prefix(' ').unwrap_or(rest));
            } else if line.is_empty() && !data.is_empty() {
                each(&data)?;
                data.clear();
            }
        }
        Ok(())
    }

    /// Sends a GET request; a status other than 2xx is an error with the problem's detail.
    fn get(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<impl Read + use<>> {
        let url = format!("{}{path}", self.base);
        let pairs = query.iter().map(|(name, value)| (*name, value.as_str()));
        let response = self
            .agent
            .get(&url)
            .query_pairs(pairs)
            .call()
            .with_context(|| format!("no response from {url}: is `chainscope run` running there?"))?;
        let status = response.status();
        let mut body = response.into_body().into_reader();
        if !status.is_success() {
            let mut text = String::new();
            body.by_ref().take(64 * 1024).read_to_string(&mut text)?;
            let detail = serde_json::from_str::<Value>(&text)
                .ok()
                .and_then(|problem| problem.get("detail").and_then(Value::as_str).map(str::to_owned))
                .unwrap_or(text);
            bail!("{url}: {status}: {}", chainscope_hygiene::Escaped(detail.trim()));
        }
        Ok(body)
    }
}
