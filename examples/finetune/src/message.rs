//! Messages of a chat in the data.

use anyhow::{Result, bail, ensure};
use serde_json::{Map, Value as Json};

/// A chat without the fields that are not for the template.
#[derive(Debug, PartialEq)]
pub struct Chat {
    pub messages: Vec<Json>,
    /// `null` if there are none.
    pub tools: Json,
    /// `true` for each message that counts in the loss.
    pub counted: Vec<bool>,
}

impl Chat {
    /// Reads messages as the data contain them.
    ///
    /// # Errors
    ///
    /// If a message has no text, or a value that has no meaning here.
    pub fn new(messages: &[Json], tools: &Json) -> Result<Self> {
        let mut chat = Self {
            messages: Vec::new(),
            tools: tools.clone(),
            counted: Vec::new(),
        };
        for (index, message) in messages.iter().enumerate() {
            let place = format!("message {}", index + 1);
            let Some(fields) = message.as_object() else {
                bail!("{place} is not an object: write one with `role` and `content`");
            };
            let mut fields = fields.clone();
            // As `transformers` 5 does: a template would write `None`.
            fields.retain(|_, value| !value.is_null());
            let Some(role) = fields.get("role").and_then(Json::as_str) else {
                bail!("{place} has no `role`: write it as a text");
            };
            let is_answer = role == "assistant";
            let counts = counts(&mut fields, is_answer, &place)?;
            let content = match fields.get("content") {
                Some(content) => Some(Json::String(text(content, &place)?)),
                None if fields.contains_key("tool_calls") => None,
                None => bail!("{place} has no `content`: write it as a text"),
            };
            let is_text = |it: &Json| it.as_str().is_some_and(|text| !text.trim().is_empty());
            let is_empty = !content.as_ref().is_some_and(is_text);
            ensure!(
                !counts || !is_empty || fields.contains_key("tool_calls"),
                "{place} is an empty answer: remove it, or exclude it with `weight` 0"
            );
            if let Some(content) = content {
                fields.insert("content".to_owned(), content);
            }
            chat.messages.push(Json::Object(fields));
            chat.counted.push(counts);
        }
        ensure!(
            chat.counted.contains(&true),
            "no message has the role `assistant` and counts, so nothing can be learned: add an answer"
        );
        Ok(chat)
    }
}

/// Takes `weight` and `train` out of a message; returns `true` if it counts in the loss.
fn counts(fields: &mut Map<String, Json>, is_answer: bool, place: &str) -> Result<bool> {
    let mut counts = is_answer;
    for name in ["weight", "train"] {
        let Some(value) = fields.shift_remove(name) else {
            continue;
        };
        let value = match (name, &value) {
            ("weight", value) if value.as_f64() == Some(0.0) => false,
            ("weight", value) if value.as_f64() == Some(1.0) => true,
            ("train", Json::Bool(value)) => *value,
            _ => {
                bail!("{place} has `{name}` {value}: use `weight` 0 or 1, or `train` false or true")
            }
        };
        ensure!(
            is_answer || !value,
            "{place} has `{name}`, and only answers count: remove it, or use the role `assistant`"
        );
        counts &= value;
    }
    Ok(counts)
}

/// Returns the text of `content`, which may be a list of parts.
fn text(content: &Json, place: &str) -> Result<String> {
    if let Some(text) = content.as_str() {
        return Ok(text.to_owned());
    }
    let Some(parts) = content.as_array() else {
        bail!(
            "`content` of {place} is not a text: write a text, or a list of parts of type `text`"
        );
    };
    let texts = parts.iter().map(|part| {
        let kind = part["type"].as_str().unwrap_or("none");
        ensure!(
            kind == "text" && part["text"].is_string(),
            "{place} has a part of type {kind}: this program trains on text, so remove the part"
        );
        let fields = part.as_object().into_iter().flatten();
        for (name, _) in fields {
            ensure!(
                ["type", "text"].contains(&name.as_str()),
                "a part of {place} has the field `{name}`, which is not used: remove it"
            );
        }
        Ok(part["text"].as_str().unwrap_or_default())
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_count_by_role_weight_and_train() {
        for (message, counts) in [
            (json!({"role": "assistant", "content": "a"}), true),
            (
                json!({"role": "assistant", "content": "a", "weight": 1}),
                true,
            ),
            (
                json!({"role": "assistant", "content": "a", "weight": 0}),
                false,
            ),
            (
                json!({"role": "assistant", "content": "a", "weight": null}),
                true,
            ),
            (
                json!({"role": "assistant", "content": "a", "train": false}),
                false,
            ),
            (
                json!({"role": "user", "content": "a", "weight": 0.0}),
                false,
            ),
            (json!({"role": "tool", "content": "a"}), false),
        ] {
            let last = json!({"role": "assistant", "content": "b"});
            let chat = Chat::new(&[message.clone(), last], &Json::Null).unwrap();
            assert_eq!(chat.counted, [counts, true], "{message}");
            let expected = json!({"role": message["role"], "content": "a"});
            assert_eq!(chat.messages[0], expected);
        }
    }

    #[test]
    fn content_beside_tool_calls_is_not_null() {
        let call = json!({"role": "assistant", "tool_calls": [{"name": "f"}]});
        let mut with_null = call.clone();
        with_null["content"] = Json::Null;
        for message in [&call, &with_null] {
            let chat = Chat::new(std::slice::from_ref(message), &Json::Null).unwrap();
            assert_eq!(chat.messages, std::slice::from_ref(&call));
        }
    }

    #[test]
    fn content_of_text_parts_is_one_text() {
        let parts = json!([{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]);
        let chat = Chat::new(
            &[json!({"role": "assistant", "content": parts})],
            &Json::Null,
        );
        assert_eq!(chat.unwrap().messages[0]["content"], "a b");
    }

    #[test]
    fn bad_messages_are_refused_by_field() {
        for (message, words) in [
            (json!("a"), "message 1 is not an object"),
            (json!({"content": "a"}), "message 1 has no `role`"),
            (json!({"role": "assistant"}), "message 1 has no `content`"),
            (json!({"role": "assistant", "content": 1}), "is not a text"),
            (
                json!({"role": "assistant", "content": "a", "weight": 0.5}),
                "has `weight` 0.5",
            ),
            (
                json!({"role": "assistant", "content": "a", "train": "no"}),
                "has `train` \"no\"",
            ),
            (
                json!({"role": "assistant", "content": "a", "weight": 0}),
                "nothing can be learned",
            ),
            (
                json!({"role": "user", "content": "a", "train": true}),
                "only answers count",
            ),
            (
                json!({"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}),
                "a part of type image_url",
            ),
            (
                json!({"role": "user", "content": [{"type": "text", "text": "a", "cache": 1}]}),
                "the field `cache`",
            ),
        ] {
            let error = Chat::new(&[message], &Json::Null).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
