//! Interval between two checkpoints.

use std::fmt::{Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

/// A number of steps, or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveEvery {
    Steps(usize),
    Time(Duration),
}

impl SaveEvery {
    /// Returns `true` if a checkpoint is due after `steps` steps, and `since` the last one.
    pub fn is_due(self, steps: usize, since: Duration) -> bool {
        match self {
            Self::Steps(every) => steps.is_multiple_of(every),
            Self::Time(every) => since >= every,
        }
    }
}

impl FromStr for SaveEvery {
    type Err = String;

    /// Parses a number of steps (`200`), or a time (`30s`, `10min`, `2h`).
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit());
        let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
        let seconds = match unit {
            "" | "s" => Some(1),
            "min" => Some(60),
            "h" => Some(3600),
            _ => None,
        };
        let number = number.parse::<u64>().ok();
        match number.zip(seconds) {
            Some((0, _)) => Err("it is 0: use 1 or more".to_owned()),
            Some((number, _)) if unit.is_empty() => Ok(Self::Steps(number as usize)),
            Some((number, seconds)) => {
                let time = Duration::from_secs(number.saturating_mul(seconds));
                Ok(Self::Time(time))
            }
            None => {
                Err("write a number of steps, such as 200, or a time, such as 10min".to_owned())
            }
        }
    }
}

impl Display for SaveEvery {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Steps(steps) => write!(f, "{steps}"),
            Self::Time(time) => write!(f, "{}s", time.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_is_parsed_with_its_unit() {
        let time = |seconds| Ok(SaveEvery::Time(Duration::from_secs(seconds)));
        for (text, expected) in [
            ("200", Ok(SaveEvery::Steps(200))),
            ("30s", time(30)),
            ("10min", time(600)),
            ("2h", time(7200)),
        ] {
            assert_eq!(text.parse(), expected);
        }
        for text in ["", "0", "0min", "-5", "10 apples", "min"] {
            assert!(text.parse::<SaveEvery>().is_err(), "{text}");
        }
    }
}
