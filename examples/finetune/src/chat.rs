//! The chat template of a tokenizer.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use anyhow::{Context, Result, bail};
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value, context, escape_formatter};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Value as Json;

use crate::date;
use crate::python_json::to_json;
use crate::python_text;
use crate::python_value;

const NAME: &str = "chat_template";

/// The name of a second template, for chats with tools.
const TOOL_USE: &str = "tool_use";

/// The file of [`TOOL_USE`], beside `chat_template.jinja`.
pub const TOOL_USE_FILE: &str = "additional_chat_templates/tool_use.jinja";

/// A template that makes one text of the messages of a chat.
pub struct Template {
    environment: Environment<'static>,
    /// The reason why a template can't be used, by name: an error only where it is needed.
    unreadable: BTreeMap<&'static str, String>,
    /// `bos_token`, `eos_token` and the like.
    special: BTreeMap<String, String>,
}

impl Template {
    /// Reads the templates in `folder`: those of [`sources`]. `None` if it has none.
    pub fn read(
        folder: &Path,
        tokenizer: &Json,
        special: BTreeMap<String, String>,
    ) -> Result<Option<Self>> {
        let sources = sources(folder, tokenizer)?;
        if sources.is_empty() {
            return Ok(None);
        }
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_formatter(|output, state, value| match value.kind() {
            ValueKind::Number | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
                Ok(output.write_str(&python_text::text(value))?)
            }
            _ => escape_formatter(output, state, value),
        });
        environment.add_filter("string", |value: Value| python_text::text(&value));
        environment.add_filter("join", |all: Value, separator: Option<String>| {
            let texts: Vec<_> = all.try_iter()?.map(|it| python_text::text(&it)).collect();
            Ok::<_, Error>(texts.join(&separator.unwrap_or_default()))
        });
        environment.add_filter("tojson", to_json);
        environment.add_test("iterable", is_iterable);
        environment.add_test("sequence", is_iterable);
        environment.add_test("number", |value: Value| {
            matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
        });
        environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.add_function("strftime_now", |format: String| -> Result<String, Error> {
            let text = date::now(&format);
            text.map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("{error:#}")))
        });
        let mut unreadable = BTreeMap::new();
        for (name, source) in sources {
            // As Jinja reads a template.
            let source = source.replace("\r\n", "\n").replace('\r', "\n");
            let source = with_scopes_of_generation(&source);
            if has_backward_slice_with_end(&source) {
                let reason = "the template engine computes a slice with a negative step and an end, such as `[:0:-1]`, in another way than \
                    Python: write it without an end";
                unreadable.insert(name, reason.to_owned());
            } else if let Err(error) = caught(|| environment.add_template_owned(name, source)) {
                unreadable.insert(name, format!("{error:#}"));
            }
        }
        Ok(Some(Self {
            environment,
            unreadable,
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
        let has = |name| {
            self.unreadable.contains_key(name) || self.environment.get_template(name).is_ok()
        };
        let name = match !tools.is_null() && has(TOOL_USE) {
            true => TOOL_USE,
            false => NAME,
        };
        if let Some(reason) = self.unreadable.get(name) {
            bail!("the chat template `{name}` can't be read: {reason}");
        }
        let template = self.environment.get_template(name).context(
            "`chat_template` in tokenizer_config.json has no template with the name `default`: rename one of them",
        )?;
        let special = Value::from_serialize(&self.special);
        let messages: Vec<_> = messages.iter().map(python_value::value).collect();
        let tools = python_value::value(tools);
        // In Python both are `None` if they are not used, which templates tell from undefined ones.
        let documents = Value::from(());
        let values = context! { messages, tools, documents, add_generation_prompt, ..special };
        caught(|| template.render(values)).context("the chat template refuses the messages")
    }
}

/// Returns `true` if `source` has a slice with a negative step and an end. The template engine reads an end of 0 as none.
fn has_backward_slice_with_end(source: &str) -> bool {
    source.match_indices(']').any(|(end, _)| {
        let begin = source[..end].rfind('[').map_or(0, |begin| begin + 1);
        let mut bounds = source[begin..end].split(':').skip(1).map(str::trim);
        let (end, step) = (bounds.next(), bounds.next());
        end.is_some_and(|end| !end.is_empty()) && step.is_some_and(|step| step.starts_with('-'))
    })
}

/// Returns an error if the template engine panics, as it does on some templates that Jinja accepts.
fn caught<R>(work: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let reason = "the template engine panics on it: simplify the template, or write the data with `prompt` and `completion` as texts";
        Err(Error::new(ErrorKind::InvalidOperation, reason))
    })
}

/// Returns the templates in the files of `folder`, or those in `tokenizer_config.json`, by name.
fn sources(folder: &Path, tokenizer: &Json) -> Result<Vec<(&'static str, String)>> {
    let read = |name: &str| match std::fs::read_to_string(folder.join(name)) {
        Ok(source) => Ok(Some(source)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context(folder.join(name).display().to_string()),
    };
    let (default, tool_use) = match (read("chat_template.jinja")?, tokenizer.get(NAME)) {
        (Some(source), _) => (Some(source), read(TOOL_USE_FILE)?),
        (None, Some(Json::String(source))) => (Some(source.clone()), None),
        (None, Some(Json::Array(all))) => {
            let named = |name: &str| {
                let found = all.iter().find(|it| it["name"] == name)?;
                Some(found["template"].as_str()?.to_owned())
            };
            (named("default"), named(TOOL_USE))
        }
        _ => (None, None),
    };
    let both = [(NAME, default), (TOOL_USE, tool_use)].into_iter();
    Ok(both
        .filter_map(|(name, source)| Some((name, source?)))
        .collect())
}

/// Returns `true` if Python can loop over the value: not over `None`.
fn is_iterable(value: Value) -> bool {
    !matches!(
        value.kind(),
        ValueKind::None | ValueKind::Bool | ValueKind::Number
    )
}

/// Returns `source` with the tag `with` in place of `generation`, which is not Jinja. In `transformers` its body has a scope, too.
/// Comments and raw blocks are unchanged.
fn with_scopes_of_generation(source: &str) -> String {
    let mut left = source;
    let mut is_raw = false;
    let mut result = String::with_capacity(source.len());
    while let Some(start) = left.find("{%").into_iter().chain(left.find("{#")).min() {
        let is_comment = left[start..].starts_with("{#");
        let end = if is_comment { "#}" } else { "%}" };
        let Some(length) = left[start..].find(end) else {
            break;
        };
        let (before, rest) = left.split_at(start);
        let (tag, after) = rest.split_at(length + 2);
        let inner = &tag[2..length];
        let name = inner.trim_matches(|c: char| "-+".contains(c) || c.is_whitespace());
        result += before;
        match name {
            "generation" | "endgeneration" if !is_comment && !is_raw => {
                result += &tag.replacen("generation", "with", 1);
            }
            _ => result += tag,
        }
        if !is_comment && ["raw", "endraw"].contains(&name) {
            is_raw = name == "raw";
        }
        left = after;
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
            ("a\r\n{% if true %}\r\nb\rc{% endif %}", "a\nb\nc"),
            (
                "{{ messages[0] }} {{ [1e-7] + [none] }} {{ ['a'] | string }} {{ [1e-7, 'b'] | join('+') }}",
                "{'role': 'user', 'content': ' <b>'} [1e-07, None] ['a'] 1e-07+b",
            ),
            (
                "{{ 'a' ~ messages[1] }} {{ messages[1].calls | upper }} {{ messages[1].calls[-1] ~ '' }}",
                "a{'role': 'assistant', 'content': 'yes', 'calls': ['b', None]} ['B', NONE] None",
            ),
            (
                "{% for key, value in messages[1].items() %}{{ key }}={{ value }} {% endfor %}{{ 'x' in messages[1] }} \
                {{ messages[1].x is defined }} {{ messages[1:] | length }} {{ messages[1].calls | tojson }} \
                {{ messages[0].get('role') }} {{ messages[1] is mapping }} {{ messages[1].calls == ['b', none] }}",
                "role=assistant content=yes calls=['b', None] False False 1 [\"b\", null] user True True",
            ),
            (
                "{{ 'a' is sequence }} {{ messages[0] is sequence }} {{ none is sequence }} {{ true is number }}",
                "True True False True",
            ),
            (
                "{{ 'none' if tools is none and documents is none }}",
                "none",
            ),
            ("a {%- generation -%} b {%- endgeneration %}", "ab"),
            (
                "{#- Added {% generation %} / {% endgeneration %} -#} {% generation %}a{% endgeneration %}",
                "a",
            ),
            ("{% raw %}{% generation %}{% endraw %}", "{% generation %}"),
            (
                "{% set x = 'a' %}{% generation %}{% set x = 'b' %}{{ x }}{% endgeneration %}{{ x }}",
                "ba",
            ),
            (
                "{% if tools is iterable and tools | length > 0 %}tools{% endif %}",
                "",
            ),
        ] {
            let messages = [
                json!({"role": "user", "content": " <b>"}),
                json!({"role": "assistant", "content": "yes", "calls": ["b", null]}),
            ];
            assert_eq!(
                template(source)
                    .render(&messages, &Json::Null, false)
                    .unwrap(),
                expected
            );
        }
    }

    #[test]
    fn template_that_panics_in_engine_is_an_error() {
        for source in [
            "{% for m in messages[:0][::-1] %}{% endfor %}",
            "{% for m in messages %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
        ] {
            let rendered = template(source).render(&[json!({})], &Json::Null, false);
            let error = format!("{:#}", rendered.unwrap_err());
            assert!(error.contains("simplify the template"), "{error}");
        }
    }

    #[test]
    fn template_with_backward_slice_to_an_end_is_refused() {
        let render = |source: &str| template(source).render(&[], &Json::Null, false);
        for source in ["{{ 'abc'[:0:-1] }}", "{{ 'abc'[2 : 0 : -1] }}"] {
            let error = render(source).unwrap_err().to_string();
            assert!(error.contains("without an end"), "{error}");
        }
        assert_eq!(render("{{ 'abc'[::-1] }}").unwrap(), "cba");
    }

    #[test]
    fn template_for_tools_is_used_with_tools() {
        let named = |name: &str| json!({"name": name, "template": name});
        let folder = tempfile::tempdir().unwrap();
        let read = |config: Json| Template::read(folder.path(), &config, BTreeMap::new());
        let config = json!({ NAME: [named("tool_use"), named("default")] });
        let both = read(config).unwrap().unwrap();
        std::fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
        std::fs::write(folder.path().join("chat_template.jinja"), "default").unwrap();
        std::fs::write(folder.path().join(TOOL_USE_FILE), "tool_use").unwrap();
        let files = read(json!({})).unwrap().unwrap();
        for template in [both, files] {
            let render = |tools: Json| template.render(&[], &tools, false).unwrap();
            assert_eq!(render(Json::Null), "default");
            assert_eq!(render(json!([{}])), "tool_use");
        }
        std::fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
        assert!(read(json!({ NAME: [named("rag")] })).unwrap().is_none());
        let of_tools = read(json!({ NAME: [named("tool_use")] })).unwrap().unwrap();
        assert_eq!(
            of_tools.render(&[], &json!([{}]), false).unwrap(),
            "tool_use"
        );
        let error = of_tools.render(&[], &Json::Null, false).unwrap_err();
        assert!(error.to_string().contains("`default`"), "{error}");
        let wrong = json!({"name": "tool_use", "template": "{% wrong"});
        let other = read(json!({ NAME: [named("default"), wrong] }));
        let other = other.unwrap().unwrap();
        assert_eq!(other.render(&[], &Json::Null, false).unwrap(), "default");
        let error = other.render(&[], &json!([{}]), false).unwrap_err();
        assert!(
            error.to_string().contains("`tool_use` can't be read"),
            "{error}"
        );
    }
}
