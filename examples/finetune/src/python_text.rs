//! Values as Python prints them, for chat templates.

use std::fmt::Write;

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::python_json::float;

/// Returns `str` of a value: a text as it is, and texts in lists and dicts in quotes.
pub fn text(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => repr(value),
        _ => value.to_string(),
    }
}

fn repr(value: &Value) -> String {
    let items = || value.try_iter().into_iter().flatten();
    match value.kind() {
        ValueKind::Number if !value.is_integer() => {
            f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
        }
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<_> = items().map(|item| repr(&item)).collect();
            format!("[{}]", items.join(", "))
        }
        ValueKind::Map => {
            let entry = |key: Value| {
                let item = value.get_item(&key).unwrap_or_default();
                format!("{}: {}", repr(&key), repr(&item))
            };
            let entries: Vec<_> = items().map(entry).collect();
            format!("{{{}}}", entries.join(", "))
        }
        _ => value.to_string(),
    }
}

/// Returns a text in single quotes, or in double quotes if it contains single quotes only.
fn quoted(text: &str) -> String {
    let quote = match text.contains('\'') && !text.contains('"') {
        true => '"',
        false => '\'',
    };
    let mut result = String::from(quote);
    for c in text.chars() {
        let code = u32::from(c);
        // Writing to a string does not fail.
        let _ = match c {
            '\n' => write!(result, "\\n"),
            '\r' => write!(result, "\\r"),
            '\t' => write!(result, "\\t"),
            '\\' => write!(result, "\\\\"),
            _ if c == quote => write!(result, "\\{c}"),
            _ if is_printable(c) => write!(result, "{c}"),
            _ if code <= 0xff => write!(result, "\\x{code:02x}"),
            _ if code <= 0xffff => write!(result, "\\u{code:04x}"),
            _ => write!(result, "\\U{code:08x}"),
        };
    }
    result.push(quote);
    result
}

fn is_printable(c: char) -> bool {
    // Rust escapes a combining character only at the beginning of a text.
    let text: String = ['a', c].iter().collect();
    !text.escape_debug().skip(1).any(|c| c == '\\') || "\\'\"".contains(c)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_those_of_str() {
        for (value, expected) in [
            (json!("it's"), "it's"),
            (json!(["integer", null, true]), "['integer', None, True]"),
            (
                json!({"a": [1, 2.5, []], "b": {}}),
                "{'a': [1, 2.5, []], 'b': {}}",
            ),
            (
                json!(["it's", "\"it's\"", "\\"]),
                r#"["it's", '"it\'s"', '\\']"#,
            ),
            (
                json!(["a\n\t\u{7f}\u{200b}\u{301}ä"]),
                "['a\\n\\t\\x7f\\u200b\u{301}ä']",
            ),
            (json!(1e-7), "1e-07"),
            (json!(1e16), "1e+16"),
            (json!(2.0), "2.0"),
            (json!(12), "12"),
            (json!(null), "None"),
        ] {
            assert_eq!(text(&Value::from_serialize(&value)), expected);
        }
    }
}
