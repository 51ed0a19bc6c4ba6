//! JSON whose objects have each field once. Of a field that is there twice, `serde_json` drops the first one.

use std::fmt::{Formatter, Result as FmtResult};

use anyhow::{Result, anyhow};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value as Json};

/// Parses `text`.
///
/// # Errors
///
/// If it is not JSON, with `advice`, or if an object has a field twice: the error names the field.
pub fn from_str(text: &str, advice: &str) -> Result<Json> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Unique.deserialize(&mut deserializer);
    let value = value.and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| match error.is_data() {
        true => anyhow!(error),
        false => anyhow!(error).context(advice.to_owned()),
    })
}

#[derive(Clone, Copy)]
struct Unique;

impl<'de> DeserializeSeed<'de> for Unique {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Json;

    fn expecting(&self, f: &mut Formatter<'_>) -> FmtResult {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value_seed(self)?;
            if fields.contains_key(&name) {
                let text = format!("an object has the field `{name}` twice: remove one of them");
                return Err(A::Error::custom(text));
            }
            fields.insert(name, value);
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_that_is_there_twice_is_refused_by_name() {
        for text in [
            r#"{"a": [1, -2, 0.5, null, true, "b"], "c": {"a": {}}}"#,
            "[]",
        ] {
            let expected: Json = serde_json::from_str(text).unwrap();
            assert_eq!(from_str(text, "advice").unwrap(), expected);
        }
        for text in [
            r#"{"text": "a", "text": "b"}"#,
            r#"[{"messages": [{"text": 1, "text": 1}]}]"#,
        ] {
            let error = from_str(text, "advice").unwrap_err().to_string();
            assert!(error.contains("has the field `text` twice"), "{error}");
        }
        for text in ["{} {}", "{", "[1,]"] {
            let error = from_str(text, "advice").unwrap_err().to_string();
            assert_eq!(error, "advice");
        }
    }
}
