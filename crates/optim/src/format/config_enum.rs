//! Formats as values of a config: a name, or nothing in a config of Burn's optimizers.

/// Implements `Config` for a format with this default. The serde derives of the format must have `remote = "Self"`.
macro_rules! config_enum {
    ($format:ident, $default:expr) => {
        impl serde::Serialize for $format {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                Self::serialize(self, to)
            }
        }

        impl<'de> serde::Deserialize<'de> for $format {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                #[derive(serde::Deserialize)]
                struct Named(#[serde(with = "Format")] Format);
                type Format = $format;
                Ok(Option::<Named>::deserialize(from)?.map_or($default, |Named(format)| format))
            }
        }

        impl burn::config::Config for $format {}

        impl std::fmt::Display for $format {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&burn::config::config_to_json(self))
            }
        }
    };
}

pub(super) use config_enum;
