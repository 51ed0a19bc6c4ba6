/// The number of bits per quantized value of a frozen weight under an adapter.
///
/// Weights are quantized in groups of 64, in memory order. Each group has a scale in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BaseFormat {
    /// Even levels from -127 to 127: 1.0625 bytes per weight.
    Bits8,
    /// For each group 16 even levels or the levels of NF4, which are close together around zero (Dettmers et al. 2023,
    /// QLoRA, appendix E), with the one of eight scales that has the smallest error: 0.5625 bytes per weight.
    Bits4,
}

/// The number of weights that share a scale.
pub(super) const GROUP: usize = 64;
/// Bytes of a scale, which come before the quantized values of its group.
pub(super) const SCALE: usize = size_of::<f32>();

/// The levels of a 4-bit value, from -1 to 1: those of NF4, quantiles of the normal distribution including zero, and
/// even ones. The sign of a group's scale selects one of the two.
pub(super) const LEVELS: [[f32; 16]; 2] = [
    [
        -1.0,
        -0.696_192_8,
        -0.525_073_05,
        -0.394_917_5,
        -0.284_441_38,
        -0.184_773_43,
        -0.091_050_036,
        0.0,
        0.079_580_3,
        0.160_930_2,
        0.246_112_3,
        0.337_915_24,
        0.440_709_83,
        0.562_617,
        0.722_956_84,
        1.0,
    ],
    even(),
];

const fn even() -> [f32; 16] {
    let mut levels = [0.0; 16];
    let mut code = 0;
    while code < 16 {
        levels[code] = (2.0 * code as f32 - 15.0) / 15.0;
        code += 1;
    }
    levels
}

impl BaseFormat {
    /// Returns the format with rows of this number of bytes.
    pub(super) fn of_row(bytes: usize) -> Option<Self> {
        [Self::Bits8, Self::Bits4]
            .into_iter()
            .find(|format| format.row() == bytes)
    }

    /// Returns the bytes of a group.
    pub(super) fn row(self) -> usize {
        SCALE
            + match self {
                Self::Bits8 => GROUP,
                Self::Bits4 => GROUP / 2,
            }
    }
}
