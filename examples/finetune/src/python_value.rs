//! Lists and dicts of a chat, which become text as in Python wherever a template makes a text of them: `~`, `upper`, `replace`.

use std::fmt::Formatter;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use serde_json::Value as Json;

use crate::python_text;

/// Returns `json` as a value of a template.
pub fn value(json: &Json) -> Value {
    python(Value::from_serialize(json))
}

fn python(value: Value) -> Value {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map => Value::from_object(Python(value)),
        _ => value,
    }
}

/// A list or a dict.
#[derive(Debug)]
struct Python(Value);

impl Object for Python {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        match self.0.kind() {
            ValueKind::Seq => ObjectRepr::Seq,
            _ => ObjectRepr::Map,
        }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let found = self.0.get_item(key).ok()?;
        (!found.is_undefined()).then(|| python(found))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match self.0.kind() {
            ValueKind::Seq => Enumerator::Seq(self.0.len().unwrap_or(0)),
            _ => Enumerator::Values(self.0.try_iter().into_iter().flatten().collect()),
        }
    }

    fn render(self: &Arc<Self>, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&python_text::text(&self.0))
    }
}
