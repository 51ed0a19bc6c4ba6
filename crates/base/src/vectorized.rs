//! Loops compiled for the instruction set of the processor.

use pulp::Arch;
pub use pulp::NullaryFnOnce as Loop;

/// Runs a loop with the widest instructions of this processor. Everything that its `call` inlines is compiled so: plain loops
/// only, since a closure is compiled for the baseline processor.
#[inline]
pub fn vectorized<L: Loop>(work: L) -> L::Output {
    // The widest instructions of `pulp`, its `V4`, are without AVX-512 VBMI.
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi")
    {
        // SAFETY: the processor has all the features that the function is compiled for.
        return unsafe { in_avx512(work) };
    }
    Arch::new().dispatch(work)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn in_avx512<L: Loop>(work: L) -> L::Output {
    work.call()
}
