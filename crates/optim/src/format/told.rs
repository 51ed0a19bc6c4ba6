//! A format in a config: its name, or nothing, as in those of Burn's optimizers.

/// Makes a format, whose derives of serde are `remote = "Self"`, a value of a config, with this default.
macro_rules! told {
    ($format:ident, $default:expr) => {
        impl serde::Serialize for $format {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                Self::serialize(self, to)
            }
        }

        impl<'de> serde::Deserialize<'de> for $format {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                #[derive(serde::Deserialize)]
                struct Told(#[serde(with = "Format")] Format);
                type Format = $format;
                Ok(Option::<Told>::deserialize(from)?.map_or($default, |Told(format)| format))
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

pub(super) use told;
