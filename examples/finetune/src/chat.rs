//! The chat template of a tokenizer.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use minijinja::{Environment, Error, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Value as Json;

use crate::date;
use crate::python_json::to_json;

const NAME: &str = "chat_template";

/// A template that makes one text of the messages of a chat.
pub struct Template {
    environment: Environment<'static>,
    /// `bos_token`, `eos_token` and the like.
    special: BTreeMap<String, String>,
}

impl Template {
    /// Reads the template in `folder`: `chat_template.jinja`, or that in `tokenizer_config.json`. `None` if it has none.
    pub fn read(
        folder: &Path,
        tokenizer: &Json,
        special: BTreeMap<String, String>,
    ) -> Result<Option<Self>> {
        let file = folder.join("chat_template.jinja");
        let source = match std::fs::read_to_string(&file) {
            Ok(source) => source,
            Err(error) if error.kind() == io::ErrorKind::NotFound => match in_config(tokenizer) {
                Some(source) => source,
                None => return Ok(None),
            },
            Err(error) => return Err(error).context(file.display().to_string()),
        };
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.add_function("strftime_now", |format: String| -> Result<String, Error> {
            let text = date::now(&format);
            text.map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("{error:#}")))
        });
        let added = environment.add_template_owned(NAME, without_generation(&source));
        added.context("the chat template can't be read")?;
        Ok(Some(Self {
            environment,
            special,
        }))
    }

    /// Returns the text of `messages`, with the beginning of an answer if `add_generation_prompt` is set. `tools` may be `null`.
    pub fn render(
        &self,
        messages: &[Json],
        tools: &Json,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let template = self.environment.get_template(NAME)?;
        let special = Value::from_serialize(&self.special);
        // In Python both are `None` if they are not used, which templates tell from undefined ones.
        let documents = Value::from(());
        let values = context! { messages, tools, documents, add_generation_prompt, ..special };
        template
            .render(values)
            .context("the chat template refuses the messages")
    }
}

/// The template in `tokenizer_config.json`: a text, or several with names.
fn in_config(tokenizer: &Json) -> Option<String> {
    match tokenizer.get(NAME)? {
        Json::String(source) => Some(source.clone()),
        Json::Array(all) => {
            let default = all.iter().find(|it| it["name"] == "default");
            Some(default.or(all.first())?["template"].as_str()?.to_owned())
        }
        _ => None,
    }
}

/// Returns `source` with comments for the tags of answers, which are not Jinja.
fn without_generation(source: &str) -> String {
    let mut left = source;
    let mut result = String::with_capacity(source.len());
    while let Some(start) = left.find("{%") {
        let Some(length) = left[start..].find("%}") else {
            break;
        };
        let inner = &left[start + 2..start + length];
        let name = inner.trim_matches(|c: char| c == '-' || c.is_whitespace());
        result.push_str(&left[..start]);
        let (open, close) = match name {
            "generation" | "endgeneration" => ("{#", "#}"),
            _ => ("{%", "%}"),
        };
        result.extend([open, inner, close]);
        left = &left[start + length + 2..];
    }
    result + left
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(source: &str) -> Template {
        let config = json!({ "chat_template": source });
        let special = BTreeMap::from([("eos_token".to_string(), "</s>".to_string())]);
        let none = Path::new("no such folder");
        Template::read(none, &config, special).unwrap().unwrap()
    }

    #[test]
    fn template_of_python_is_rendered() {
        for (source, expected) in [
            (
                "{{ messages[0]['content'].strip() }}{{ eos_token }}",
                "<b></s>",
            ),
            (
                "{% for m in messages %}\n  {{ m.role }}\n{% endfor %}",
                "  user\n  assistant\n",
            ),
            (
                "{{ messages[0] | tojson }}",
                r#"{"role": "user", "content": " <b>"}"#,
            ),
            ("{{ strftime_now('%%') }}", "%"),
            (
                "{{ 'none' if tools is none and documents is none }}",
                "none",
            ),
            ("a {%- generation -%} b {%- endgeneration %}", "ab"),
        ] {
            let messages = [
                json!({"role": "user", "content": " <b>"}),
                json!({"role": "assistant", "content": "yes"}),
            ];
            assert_eq!(
                template(source)
                    .render(&messages, &Json::Null, false)
                    .unwrap(),
                expected
            );
        }
    }
}
