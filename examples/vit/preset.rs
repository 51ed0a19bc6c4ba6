//! Model sizes for the command line.

use clap::ValueEnum;

use crate::model::VitConfig;

/// Size of the vision transformer.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Preset {
    /// 8 x 8 images, 0.14 million parameters.
    Digits,
    /// 224 x 224 images, 6 million parameters.
    #[value(name = "vit-ti-16")]
    VitTi16,
    /// 224 x 224 images, 22 million parameters.
    #[value(name = "vit-s-16")]
    VitS16,
    /// 224 x 224 images, 86 million parameters.
    #[value(name = "vit-b-16")]
    VitB16,
    /// 224 x 224 images, 304 million parameters.
    #[value(name = "vit-l-16")]
    VitL16,
}

impl Preset {
    pub fn config(self) -> VitConfig {
        match self {
            Self::Digits => VitConfig::digits(),
            Self::VitTi16 => VitConfig::vit_ti_16(),
            Self::VitS16 => VitConfig::vit_s_16(),
            Self::VitB16 => VitConfig::vit_b_16(),
            Self::VitL16 => VitConfig::vit_l_16(),
        }
    }
}
