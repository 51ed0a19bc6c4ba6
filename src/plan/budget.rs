use std::fmt::{Display, Formatter};
use std::str::FromStr;

use burn::tensor::Device;

use super::error::PlanError;
use crate::offload::HostMemory;

/// The maximum peak memory of a training.
///
/// On `flex` and `ndarray` it includes all bytes of the process, also those allocated before the training. On a
/// device with its own memory it includes the bytes of the device. A remote device reports no memory, so it can't be planned for.
///
/// ```
/// use backburn::Budget;
///
/// assert_eq!("6GB".parse::<Budget>()?, Budget::Bytes(6_000_000_000));
/// assert_eq!("1.5 GiB".parse::<Budget>()?, Budget::Bytes(3 << 29));
/// assert_eq!("machine".parse::<Budget>()?, Budget::Machine);
/// # Ok::<(), backburn::PlanError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// A number of bytes.
    Bytes(usize),
    /// 90 % of the memory that this process can use: the available memory of the machine plus the memory of the process, or the
    /// limit of its control group if that is less. The rest is for bytes that are not counted: pages cached by the heap,
    /// the code of the program, the stacks of its threads.
    ///
    /// Not supported for a device with its own memory, which does not report its size.
    Machine,
}

impl From<usize> for Budget {
    fn from(bytes: usize) -> Self {
        Self::Bytes(bytes)
    }
}

impl FromStr for Budget {
    type Err = PlanError;

    /// Parses a number with an optional unit, `B`, `kB`, `MB`, `GB`, `TB` (powers of 1000), `KiB`, `MiB`, `GiB`, `TiB` (of 1024); or
    /// `machine`.
    fn from_str(text: &str) -> Result<Self, PlanError> {
        let unreadable = || {
            PlanError::invalid(format!(
                "`{text}` is not a number of bytes: write it as 6GB, 500MB, 1.5GiB or 6000000000"
            ))
        };
        let lower = text.trim().to_lowercase();
        if lower == "machine" {
            return Ok(Self::Machine);
        }
        let end = lower
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(lower.len());
        let (number, unit) = lower.split_at(end);
        let unit: f64 = match unit.trim() {
            "" | "b" => 1.0,
            "k" | "kb" => 1e3,
            "m" | "mb" => 1e6,
            "g" | "gb" => 1e9,
            "t" | "tb" => 1e12,
            "kib" => 1024.0,
            "mib" => 1_048_576.0,
            "gib" => 1_073_741_824.0,
            "tib" => 1_099_511_627_776.0,
            _ => return Err(unreadable()),
        };
        let bytes = number.parse::<f64>().map_err(|_| unreadable())? * unit;
        // 8.2 * 1e6 is a little less than 8.2 million.
        let bytes = bytes.round();
        match bytes.is_finite() && bytes < usize::MAX as f64 {
            true => Ok(Self::Bytes(bytes as usize)),
            false => Err(unreadable()),
        }
    }
}

impl Display for Budget {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
            Self::Machine => f.write_str("the memory of the machine"),
        }
    }
}

impl Budget {
    /// Returns the number of bytes for a training on `device`.
    ///
    /// # Errors
    ///
    /// If it is 0, or the size of the memory is unknown.
    pub fn bytes(self, device: &Device) -> Result<usize, PlanError> {
        match self {
            Self::Bytes(0) => Err(PlanError::invalid(
                "the budget is 0 bytes: pass the number of bytes that the training may take",
            )),
            Self::Bytes(bytes) => Ok(bytes),
            Self::Machine if device.memory_pool_usage().is_some() => Err(unknown(&format!(
                "{device:?} reports the memory in use, but not its size"
            ))),
            Self::Machine => machine(HostMemory::now()),
        }
    }

    /// Returns the largest number of bytes that the planner may take to find a larger budget, if nothing fits this one.
    pub(super) fn most(self, device: &Device) -> usize {
        match self {
            Self::Bytes(_) if device.memory_pool_usage().is_none() => {
                machine(HostMemory::now()).unwrap_or(0)
            }
            Self::Bytes(_) | Self::Machine => 0,
        }
    }
}

fn unknown(reason: &str) -> PlanError {
    PlanError::invalid(format!(
        "the size of the memory is unknown: {reason}. Pass the number of bytes instead (`Budget::Bytes`)"
    ))
}

/// Returns nine tenths of what the process can hold in this memory.
fn machine(memory: Result<HostMemory, &str>) -> Result<usize, PlanError> {
    let memory = memory.map_err(unknown)?;
    let available = memory.available.saturating_add(memory.held);
    let limit = memory.group.map_or(u64::MAX, |group| group.total_memory);
    match available.min(limit) {
        0 => Err(unknown("the operating system does not report it")),
        bytes => Ok((bytes / 10 * 9) as usize),
    }
}

#[cfg(test)]
mod tests {
    use sysinfo::CGroupLimits;

    use super::*;

    #[test]
    fn budget_is_parsed_with_its_unit() {
        for (text, bytes) in [
            ("6GB", 6_000_000_000),
            ("300 MB", 300_000_000),
            ("2kib", 2048),
            ("0.5G", 500_000_000),
            ("17", 17),
            ("17B", 17),
            ("8.2MB", 8_200_000),
            ("1.5GiB", 3 << 29),
        ] {
            assert_eq!(text.parse::<Budget>().unwrap(), Budget::Bytes(bytes));
        }
        for text in ["", "GB", "6 apples", "-6GB", "1.2.3MB", "9999999999TB"] {
            let error = text.parse::<Budget>().unwrap_err().to_string();
            assert!(error.contains("6GB"), "{error}");
        }
    }

    #[test]
    fn machine_is_nine_tenths_of_what_it_and_its_group_allow() {
        let memory = |held, available, limit: Option<u64>| {
            Ok(HostMemory {
                held,
                available,
                free_swap: 1000,
                group: limit.map(|total_memory| CGroupLimits {
                    total_memory,
                    free_memory: 0,
                    free_swap: 0,
                    rss: 0,
                }),
            })
        };
        for (memory, expected) in [
            (memory(20, 80, None), 90),
            (memory(20, 80, Some(1000)), 90),
            (memory(20, 80, Some(50)), 45),
        ] {
            assert_eq!(machine(memory).unwrap(), expected);
        }
        for unknown in [memory(0, 0, None), Err("no such process")] {
            let error = machine(unknown).unwrap_err().to_string();
            assert!(
                error.contains("the size of the memory is unknown"),
                "{error}"
            );
        }
        assert!(machine(HostMemory::now()).unwrap() > 1 << 20);
    }
}
