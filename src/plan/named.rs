//! Serialization of a config under the name of its type, so that the config of another optimizer with the same fields is not
//! accepted.

use std::fmt::Formatter;
use std::marker::PhantomData;

use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Returns the name of a type, without its module and parameters.
fn name<T>() -> &'static str {
    let path = std::any::type_name::<T>().split('<').next();
    path.and_then(|path| path.rsplit("::").next()).unwrap_or("")
}

pub(super) fn serialize<T, S>(config: &T, serializer: S) -> Result<S::Ok, S::Error>
where
    T: Serialize,
    S: Serializer,
{
    let mut map = serializer.serialize_map(Some(1))?;
    map.serialize_entry(name::<T>(), config)?;
    map.end()
}

pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_map(Named(PhantomData))
}

struct Named<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Named<T> {
    type Value = T;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "the name `{}` and its config", name::<T>())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let found: Option<String> = map.next_key()?;
        match found {
            Some(found) if found == name::<T>() => map.next_value(),
            found => Err(A::Error::custom(format!(
                "the plan is for `{}`, not for `{}`: read it with the optimizer that it was made for, or plan again",
                found.unwrap_or_default(),
                name::<T>()
            ))),
        }
    }
}
