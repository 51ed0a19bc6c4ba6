//! Serialization of a config under the name of its type, so that the config of another optimizer with the same fields is not
//! accepted.

use std::collections::BTreeMap;

use serde::de::Error;
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
    BTreeMap::from([(name::<T>(), config)]).serialize(serializer)
}

pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let mut named = BTreeMap::<String, serde_json::Value>::deserialize(deserializer)?;
    let name = name::<T>();
    let Some(config) = named.remove(name) else {
        let found: Vec<_> = named.into_keys().collect();
        return Err(D::Error::custom(format!(
            "the plan is for `{}`, not for `{name}`: load it with the optimizer that it was made for, or make a new plan",
            found.join(", ")
        )));
    };
    T::deserialize(config).map_err(D::Error::custom)
}
