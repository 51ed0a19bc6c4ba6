//! The streams of CubeCL devices: one for each thread, up to `max_streams`.

use burn::tensor::Device;
use burn_cubecl::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

/// Warns if `threads` concurrent threads share the streams of `device`: an operation of one then waits for the
/// operations of another.
pub(crate) fn check_streams(device: &Device, threads: usize) {
    if backburn_base::is_cubecl(device)
        && let Some(warning) = shared(CubeClRuntimeConfig::get().streaming.max_streams, threads)
    {
        log::warn!("{device:?}: {warning}");
    }
}

fn shared(max_streams: u8, threads: usize) -> Option<String> {
    let warning = format!(
        "the training uses {threads} concurrent threads, but `max_streams` of `[streaming]` in `cubecl.toml` is {max_streams}: \
         transfers will wait for computations. Set it to {threads} or more, or remove it"
    );
    (usize::from(max_streams) < threads).then_some(warning)
}

#[cfg(test)]
mod tests {
    use super::shared;

    #[test]
    fn streams_shared_by_threads_name_option() {
        assert_eq!(shared(128, 3), None);
        assert_eq!(shared(3, 3), None);
        assert!(shared(1, 3).unwrap().contains("`max_streams`"));
    }
}
