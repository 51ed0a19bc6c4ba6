//! Check that NVIDIA's driver loads the output of CubeCL's compiler. The compiler aborts the process otherwise, so the
//! check precedes the first kernel.

use burn::tensor::Device;

/// The kernel module's version, on Linux.
const VERSION: &str = "/sys/module/nvidia/version";

/// Returns the problem of `device`'s driver, if one is known.
pub(super) fn fault(device: &Device) -> Option<String> {
    let identity = device.identity()?;
    let version = std::fs::read_to_string(VERSION).ok()?;
    too_old(version.trim(), &identity.fingerprint)
}

/// Returns the problem with kernels of this `fingerprint`, which ends with the compute capability (`ptx_sm90`).
fn too_old(version: &str, fingerprint: &str) -> Option<String> {
    let capability: u32 = fingerprint.strip_prefix("ptx_sm")?.parse().ok()?;
    let branch: u32 = version.split('.').next()?.parse().ok()?;
    // The first of the PTX versions that have the target, and of the drivers that have that version (PTX ISA,
    // release notes; CUDA toolkit release notes, table 3).
    let oldest = match capability {
        ..90 => 450,
        90..100 => 525,
        103 | 121 => 575,
        110 => 580,
        _ => 570,
    };
    let needed = format!(
        "its driver is {version}, and for its compute capability, {}.{}, one of {oldest} or newer is needed",
        capability / 10,
        capability % 10
    );
    (branch < oldest).then_some(needed)
}

#[cfg(test)]
mod tests {
    use super::too_old;

    #[test]
    fn driver_older_than_device_needs_is_refused() {
        assert_eq!(too_old("580.95.05", "ptx_sm100"), None);
        assert_eq!(too_old("470.256.02", "ptx_sm80"), None);
        let fault = too_old("520.61.05", "ptx_sm90").unwrap();
        assert!(fault.contains("520.61.05") && fault.contains("9.0") && fault.contains("525"));
        assert!(too_old("560.35", "ptx_sm120").is_some());
        assert_eq!(too_old("none", "ptx_sm90"), None);
    }
}
