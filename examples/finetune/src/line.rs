//! Formats of a document in JSON.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value as Json, json};

use crate::message::Chat;

/// A document before it is cut into tokens.
#[derive(Debug, PartialEq)]
pub enum Document {
    Text(String),
    /// Only the second text counts.
    Completion(String, String),
    Chat(Chat),
}

/// Required and optional fields of each format. The first required field is the name of the format.
const FORMATS: [(&[&str], &[&str]); 5] = [
    (&["text"], &[]),
    (&["messages"], &["tools"]),
    (&["prompt", "completion"], &[]),
    (&["instruction", "output"], &["input"]),
    (&["conversations"], &[]),
];

const EXPECTED: &str = "a line is an object with `text`, a text, or with `messages`, a list: write one of them, or `prompt` and \
                        `completion`, `instruction` and `output`, or `conversations`";

impl Document {
    /// Reads an object in one of the formats. A field with `null` is left out.
    ///
    /// # Errors
    ///
    /// If it has a field that is not used.
    pub fn new(mut value: Json) -> Result<Self> {
        let fields = value.as_object_mut().context(EXPECTED)?;
        fields.retain(|_, value| !value.is_null());
        match format(fields)? {
            "text" => {
                let text = fields["text"].as_str().context(EXPECTED)?;
                ensure!(!text.trim().is_empty(), "`text` is empty: remove the line");
                Ok(Self::Text(text.to_owned()))
            }
            "prompt" if fields["prompt"].is_array() => {
                let (prompt, completion) = (list(fields, "prompt")?, list(fields, "completion")?);
                chat_of(prompt, completion)
            }
            "prompt" => {
                let (prompt, completion) = (text(fields, "prompt")?, text(fields, "completion")?);
                ensure!(
                    !completion.trim().is_empty(),
                    "`completion` is empty: remove the line"
                );
                Ok(Self::Completion(prompt, completion))
            }
            "instruction" => {
                let mut question = text(fields, "instruction")?;
                if fields.contains_key("input") && !text(fields, "input")?.is_empty() {
                    question = format!("{question}\n{}", text(fields, "input")?);
                }
                let question = json!({"role": "user", "content": question});
                let output = text(fields, "output")?;
                ensure!(
                    !output.trim().is_empty(),
                    "`output` is empty: remove the line"
                );
                let answer = json!({"role": "assistant", "content": output});
                Ok(Self::Chat(Chat::new(&[question, answer], &Json::Null)?))
            }
            "conversations" => {
                let messages = list(fields, "conversations")?.iter().map(from_sharegpt);
                let messages: Vec<Json> = messages.collect::<Result<_>>()?;
                Ok(Self::Chat(Chat::new(&messages, &Json::Null)?))
            }
            _ => {
                let tools = fields.get("tools").unwrap_or(&Json::Null);
                ensure!(
                    tools.is_null() || tools.is_array(),
                    "`tools` is not a list: write a list of functions"
                );
                // An empty list has no tool that a template could write.
                let is_empty = tools.as_array().is_some_and(Vec::is_empty);
                let tools = if is_empty { &Json::Null } else { tools };
                Ok(Self::Chat(Chat::new(list(fields, "messages")?, tools)?))
            }
        }
    }
}

/// Returns the first field of the format, or an error for a field of no or of another format.
fn format(fields: &Map<String, Json>) -> Result<&'static str> {
    let mut formats = FORMATS.iter();
    let format = formats.find(|(required, _)| fields.contains_key(required[0]));
    let (required, optional) = format.context(EXPECTED)?;
    for name in fields.keys().map(String::as_str) {
        ensure!(
            required.contains(&name) || optional.contains(&name),
            "the field `{name}` beside `{}` is not used: remove it",
            required[0]
        );
    }
    for name in *required {
        ensure!(
            fields.contains_key(*name),
            "`{name}` is missing beside `{}`: add it",
            required[0]
        );
    }
    Ok(required[0])
}

fn text(fields: &Map<String, Json>, name: &str) -> Result<String> {
    let text = fields[name].as_str();
    let text = text.with_context(|| format!("`{name}` is not a text: write a text"))?;
    Ok(text.to_owned())
}

fn list<'a>(fields: &'a Map<String, Json>, name: &str) -> Result<&'a [Json]> {
    let list = fields[name].as_array();
    let list = list.with_context(|| format!("`{name}` is not a list: write a list of messages"))?;
    Ok(list)
}

/// Returns a chat whose `completion` alone counts.
fn chat_of(prompt: &[Json], completion: &[Json]) -> Result<Document> {
    let mut chat = Chat::new(&[prompt, completion].concat(), &Json::Null)?;
    chat.counted[..prompt.len()].fill(false);
    ensure!(
        chat.counted.contains(&true),
        "`completion` has no message with the role `assistant`: add the answer"
    );
    Ok(Document::Chat(chat))
}

/// Returns a message of ShareGPT with the names of `messages`.
fn from_sharegpt(message: &Json) -> Result<Json> {
    let role = match message["from"].as_str() {
        Some("human" | "user") => "user",
        Some("gpt" | "assistant") => "assistant",
        Some("system") => "system",
        Some(other) => bail!("`from` is {other}: use human, gpt or system, or write `messages`"),
        None => bail!("a message of `conversations` has no `from`: add it, or write `messages`"),
    };
    let mut fields = message.as_object().cloned().unwrap_or_default();
    for name in ["role", "content"] {
        ensure!(
            fields.get(name).is_none_or(Json::is_null),
            "a message of `conversations` has the field `{name}`, which is not used: remove it, or write `messages`"
        );
    }
    fields.shift_remove("from");
    let value = fields.shift_remove("value");
    fields.insert("role".to_owned(), json!(role));
    fields.insert(
        "content".to_owned(),
        value.context("a message of `conversations` has no `value`: add it")?,
    );
    Ok(Json::Object(fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_with_one_content_are_one_document() {
        let answer =
            json!([{"role": "user", "content": "a\nb"}, {"role": "assistant", "content": "c"}]);
        for other in [
            json!({"messages": answer, "tools": null}),
            json!({"messages": answer, "tools": []}),
            json!({"instruction": "a", "input": "b", "output": "c"}),
            json!({"instruction": "a\nb", "input": "", "output": "c"}),
            json!({"conversations": [{"from": "human", "value": "a\nb"}, {"from": "gpt", "value": "c"}]}),
            json!({"prompt": [answer[0]], "completion": [answer[1]]}),
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a\nb"}]}, answer[1]]}),
        ] {
            let expected = Chat::new(answer.as_array().unwrap(), &Json::Null).unwrap();
            let found = Document::new(other.clone()).unwrap();
            assert_eq!(found, Document::Chat(expected), "{other}");
        }
        let found = Document::new(json!({"prompt": "a", "completion": "b"})).unwrap();
        assert_eq!(found, Document::Completion("a".to_owned(), "b".to_owned()));
    }

    #[test]
    fn completion_alone_counts() {
        let message = |role: &str| json!({"role": role, "content": "x"});
        let prompt = ["user", "assistant", "user"].map(message);
        let line = json!({"prompt": prompt, "completion": [message("assistant")]});
        let Document::Chat(chat) = Document::new(line).unwrap() else {
            panic!("no chat");
        };
        assert_eq!(chat.counted, [false, false, false, true]);
    }

    #[test]
    fn unused_fields_are_refused_by_name() {
        for (line, words) in [
            (
                json!({"text": "a", "messages": []}),
                "`messages` beside `text`",
            ),
            (json!({"text": "a", "id": 1}), "`id` beside `text`"),
            (
                json!({"messages": [], "prompt": "a"}),
                "`prompt` beside `messages`",
            ),
            (
                json!({"instruction": "a", "output": "b", "history": []}),
                "`history` beside `instruction`",
            ),
            (
                json!({"prompt": "a"}),
                "`completion` is missing beside `prompt`",
            ),
            (
                json!({"prompt": "a", "completion": ""}),
                "`completion` is empty",
            ),
            (
                json!({"conversations": [{"from": "observation", "value": "a"}]}),
                "`from` is observation",
            ),
            (json!({"id": 1}), "a line is an object"),
            (
                json!({"messages": [], "tools": "a"}),
                "`tools` is not a list",
            ),
            (
                json!({"prompt": "a", "completion": " \n"}),
                "`completion` is empty",
            ),
            (
                json!({"instruction": "a", "output": ""}),
                "`output` is empty",
            ),
            (
                json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": " "}]}),
                "message 2 is an empty answer",
            ),
            (
                json!({"conversations": [{"from": "gpt", "value": "a", "content": "b"}]}),
                "has the field `content`",
            ),
            (
                json!({"conversations": [{"from": "gpt", "value": "a", "role": "user"}]}),
                "has the field `role`",
            ),
        ] {
            let error = Document::new(line).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
