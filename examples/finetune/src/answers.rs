//! Answers in the text of a chat.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use serde_json::Value as Json;

use crate::chat::Template;
use crate::message::Chat;

/// Roles whose text a template writes as it is. It may escape the text of other roles, such as `tool` and `ipython`.
const LITERAL: [&str; 4] = ["system", "developer", "user", "assistant"];

/// The field of the reasoning before an answer.
const REASONING: &str = "reasoning_content";

/// Fields that `transformers` copies to [`REASONING`].
const OTHER_REASONING: [&str; 2] = ["thinking", "reasoning"];

impl Template {
    /// Returns the text of `chat`, and which of its bytes are answers that count.
    ///
    /// # Errors
    ///
    /// If the template leaves out a part of the chat, or changes a part when later messages are added, so that answers can't be
    /// found.
    pub fn answers(&self, chat: &Chat) -> Result<(String, Vec<Range<usize>>)> {
        let Chat {
            messages, tools, ..
        } = chat;
        let whole = self.render(messages, tools, false)?;
        self.check_all_is_used(chat, &whole)?;
        let mut answers = Vec::new();
        for index in (0..messages.len()).filter(|index| chat.counted[*index]) {
            let (asked, answered) = (&messages[..index], &messages[..=index]);
            let prompt = self.render(asked, tools, true);
            let prompt = match index {
                0 => prompt.context(
                    "message 1 is an answer to nothing: exclude it with `weight` 0, or add a question",
                )?,
                _ => prompt?,
            };
            let with = self.render(answered, tools, false)?;
            let number = index + 1;
            ensure!(
                whole.starts_with(&with),
                "the chat template changes message {number} when later messages are added: {}",
                match chat.counted.iter().filter(|counts| **counts).count() {
                    1 => "end the chat with this message",
                    _ => "write a chat for each answer, in which earlier answers have `weight` 0",
                }
            );
            // A prompt may end with a part that is not in chats, such as `<think>`, and the answer may begin in the same way.
            let mut start = common_prefix(&prompt, &with);
            if start < prompt.len() {
                let plain = self.render(asked, tools, false)?;
                ensure!(
                    with.starts_with(&plain) && prompt.starts_with(&plain),
                    "the chat template changes the messages before message {number} when it is added: write the data \
                     with `prompt` and `completion` as texts, or change the template"
                );
                let content = messages[index]["content"].as_str().unwrap_or_default();
                let begin = with.rfind(content.trim()).unwrap_or(start);
                start = start.min(begin.max(plain.len()));
                // If the common beginning ends within a tag, the answer begins with that tag: `<t` of `<think>` and `<tool_call>`.
                let header = &with[plain.len()..start];
                let tag = header.rfind(['<', '[']);
                if let Some(tag) = tag.filter(|tag| !header[*tag..].contains(['>', ']'])) {
                    start = plain.len() + tag;
                }
            }
            answers.push(start..with.len());
        }
        Ok((whole, answers))
    }

    /// Returns an error for a part of `chat` that the template leaves out of the text `whole`.
    fn check_all_is_used(&self, chat: &Chat, whole: &str) -> Result<()> {
        let is_used = |messages: &[Json], tools: &Json| -> Result<bool> {
            Ok(self.render(messages, tools, false)? != whole)
        };
        let tools = &chat.tools;
        ensure!(
            tools.is_null() || is_used(&chat.messages, &Json::Null).unwrap_or(true),
            "the chat template leaves out `tools`: remove them, or use another template"
        );
        let blanks_removed = |text: &str| text.split_whitespace().collect::<String>();
        let written = blanks_removed(whole);
        // The text of a message that is left out can be in another one: marks tell them apart.
        let marked = self.render(&marked(&chat.messages), tools, false);
        let is_left_out = |index| {
            let marked = marked.as_ref().ok();
            marked.is_some_and(|text| !text.contains(mark(index)))
        };
        for (index, message) in chat.messages.iter().enumerate() {
            let place = format!("message {} with the role {}", index + 1, message["role"]);
            let without = |name: &str| {
                let mut messages = chat.messages.clone();
                let fields = messages[index].as_object_mut();
                fields.and_then(|fields| fields.shift_remove(name));
                messages
            };
            for name in message
                .as_object()
                .into_iter()
                .flat_map(|fields| fields.keys())
            {
                // An id connects two messages. It is not a text to learn.
                if ["role", "content", "tool_call_id"].contains(&name.as_str()) {
                    continue;
                }
                let is_read_renamed = || {
                    let mut messages = without(name);
                    messages[index][REASONING] = message[name].clone();
                    OTHER_REASONING.contains(&name.as_str())
                        && message.get(REASONING).is_none()
                        && is_used(&messages, tools).unwrap_or(false)
                };
                // A template that fails without a field uses it.
                ensure!(
                    is_used(&without(name), tools).unwrap_or(true),
                    "the chat template leaves out `{name}` of {place}: {}",
                    match is_read_renamed() {
                        true => "rename it to `reasoning_content`",
                        false => "remove it, or use another template",
                    }
                );
            }
            let content = message["content"].as_str().unwrap_or_default();
            let is_written = written.contains(&blanks_removed(content)) && !is_left_out(index);
            if content.trim().is_empty() || is_written {
                continue;
            }
            let mut messages = chat.messages.clone();
            messages[index]["content"] = Json::from(format!("{content}."));
            let role = message["role"].as_str().unwrap_or_default();
            ensure!(
                !LITERAL.contains(&role) && is_used(&messages, tools).unwrap_or(true),
                "the chat template leaves out {place}, or a part of it: move its text to another message, or write the data with \
                 `prompt` and `completion` as texts"
            );
        }
        Ok(())
    }
}

/// Returns a character that marks the message at `index`. It is in no text.
fn mark(index: usize) -> char {
    char::from_u32(0xf_0000 + index as u32 % 0xfffe).unwrap_or_default()
}

/// Returns `messages` with a mark at the end of each text.
fn marked(messages: &[Json]) -> Vec<Json> {
    let mut messages = messages.to_vec();
    for (index, message) in messages.iter_mut().enumerate() {
        if let Some(content) = message["content"].as_str().filter(|it| !it.is_empty()) {
            message["content"] = Json::from(format!("{content}{}", mark(index)));
        }
    }
    messages
}

/// Returns the length of the longest common beginning.
fn common_prefix(one: &str, other: &str) -> usize {
    let pairs = one.char_indices().zip(other.chars());
    let mut pairs = pairs.skip_while(|((_, one), other)| one == other);
    pairs
        .next()
        .map_or(one.len().min(other.len()), |((at, _), _)| at)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(source: &str) -> Template {
        let config = json!({ "chat_template": source });
        let none = std::path::Path::new("no such folder");
        let template = Template::read(none, &config, Default::default());
        template.unwrap().unwrap()
    }

    fn message(role: &str) -> Json {
        json!({"role": role, "content": role})
    }

    fn answers(source: &str, roles: &[&str]) -> Result<Vec<String>> {
        let messages: Vec<Json> = roles.iter().map(|role| message(role)).collect();
        let (text, answers) = template(source).answers(&Chat::new(&messages, &Json::Null)?)?;
        Ok(answers.into_iter().map(|it| text[it].to_owned()).collect())
    }

    const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}";

    #[test]
    fn answers_begin_after_common_prompt() {
        for prompt in ["<assistant>", "<assistant><think>\n", "", "<assistant>ask"] {
            let source =
                format!("{PLAIN}{{% if add_generation_prompt %}}{{{{ '{prompt}' }}}}{{% endif %}}");
            let roles = ["user", "assistant", "user", "assistant"];
            let expected = match prompt {
                "" => "<assistant>assistant;",
                _ => "assistant;",
            };
            assert_eq!(answers(&source, &roles).unwrap(), [expected; 2], "{prompt}");
        }
    }

    #[test]
    fn answer_that_begins_with_a_tag_is_whole() {
        let call = json!({"type": "function", "function": {"name": "now", "arguments": {}}});
        let calls = json!({"role": "assistant", "content": "", "tool_calls": [call]});
        let calling = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %}";
        for (of_message, answer, expected) in [
            (
                format!("{{{{ m.content }}}}{calling}"),
                &calls,
                "<tool_call>now</tool_call>;",
            ),
            (
                format!(
                    "{{% if m.tool_calls %}}{calling}{{% else %}}{{{{ m.content }}}}{{% endif %}}"
                ),
                &calls,
                "<tool_call>now</tool_call>;",
            ),
            (
                "{% if m.role == 'assistant' %}</think>{% endif %}{{ m.content }}".to_string(),
                &message("assistant"),
                "</think>assistant;",
            ),
        ] {
            let source = format!(
                "{{% for m in messages %}}<{{{{ m.role }}}}>{of_message};{{% endfor %}}{{% if add_generation_prompt %}}<assistant><think>\n\
                {{% endif %}}"
            );
            let messages = [message("user"), answer.clone()];
            let chat = Chat::new(&messages, &Json::Null).unwrap();
            let (text, answers) = template(&source).answers(&chat).unwrap();
            assert_eq!(&text[answers[0].clone()], expected, "{source}");
        }
    }

    #[test]
    fn template_that_rewrites_answers_is_refused() {
        let source = "{% for m in messages %}{% if loop.last and m.role == 'assistant' %}think {% endif %}{{ m.content }}|{% endfor %}";
        let all = ["user", "assistant", "user", "assistant"];
        for (roles, words) in [
            (
                &all[..3],
                "changes message 2 when later messages are added: end the chat with this message",
            ),
            (
                &all[..],
                "changes message 2 when later messages are added: write a chat for each answer, in which earlier answers have \
                `weight` 0",
            ),
        ] {
            let error = answers(source, roles).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(answers(source, &all[..2]).unwrap(), ["think assistant|"]);
        let source =
            "{% for m in messages %}{% if loop.last %}last {% endif %}{{ m.content }}|{% endfor %}";
        let error = answers(source, &all[..2]).unwrap_err().to_string();
        assert!(error.contains("before message 2"), "{error}");
    }

    #[test]
    fn part_of_chat_that_template_leaves_out_is_refused() {
        let without_system = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}";
        let words = "leaves out message 1 with the role \"system\"";
        for text in ["system", "user"] {
            let mut messages = ["system", "user", "assistant"].map(message);
            messages[0]["content"] = json!(text);
            let chat = Chat::new(&messages, &Json::Null).unwrap();
            let error = template(without_system).answers(&chat).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }

        let chat = |extra: Json, tools: Json| {
            let mut answer = message("assistant");
            let fields = extra.as_object().unwrap().clone();
            answer.as_object_mut().unwrap().extend(fields);
            Chat::new(&[message("user"), answer], &tools).unwrap()
        };
        let tools = "{% if tools is not none %}{{ tools | tojson }}{% endif %}";
        let name = "{% for m in messages %}{{ m.name }}{{ m.content }};{% endfor %}";
        for (chat, field, with) in [
            (
                chat(json!({}), json!([{"name": "f"}])),
                "`tools`",
                format!("{tools}{PLAIN}"),
            ),
            (
                chat(json!({"name": "n"}), Json::Null),
                "`name` of message 2",
                name.to_owned(),
            ),
        ] {
            template(&with).answers(&chat).unwrap();
            let error = template(PLAIN).answers(&chat).unwrap_err().to_string();
            assert!(error.contains(&format!("leaves out {field}")), "{error}");
        }
        let with_id = chat(json!({"tool_call_id": "1"}), Json::Null);
        template(PLAIN).answers(&with_id).unwrap();

        let reasoning =
            "{% for m in messages %}{{ m.reasoning_content }}{{ m.content }};{% endfor %}";
        for (extra, source, advice) in [
            (json!({"thinking": "t"}), reasoning, "rename it to"),
            (json!({"reasoning": "t"}), reasoning, "rename it to"),
            (json!({"reasoning": "t"}), PLAIN, "remove it"),
            (json!({"name": "t"}), reasoning, "remove it"),
            (
                json!({"thinking": "t", "reasoning_content": "r"}),
                reasoning,
                "remove it",
            ),
        ] {
            let error = template(source).answers(&chat(extra, Json::Null));
            let error = error.unwrap_err().to_string();
            assert!(error.contains(advice), "{error}");
        }
    }

    #[test]
    fn escaped_text_is_accepted_of_tools_only() {
        let source = "{% for m in messages %}{{ m.content | tojson }};{% endfor %}";
        for (role, is_accepted) in [
            ("tool", true),
            ("ipython", true),
            ("user", false),
            ("system", false),
        ] {
            let mut first = message(role);
            first["content"] = json!("a \"b\"");
            let chat = Chat::new(&[first, message("assistant")], &Json::Null).unwrap();
            let answers = template(source).answers(&chat);
            assert_eq!(answers.is_ok(), is_accepted, "{role}: {answers:?}");
        }
    }
}
