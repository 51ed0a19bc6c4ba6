use super::super::timeline::{Bytes, MemoryTimeline, Phase};

/// Red, green, blue.
pub(super) type Rgb = [u8; 3];

/// A category of bytes in a plot.
pub(super) struct Layer {
    pub(super) name: &'static str,
    pub(super) color: Rgb,
    pub(super) bytes: fn(&Bytes) -> usize,
}

/// From the bottom up.
const LAYERS: [Layer; 5] = [
    Layer {
        name: "parameters",
        color: [49, 99, 149],
        bytes: |bytes| bytes.parameters,
    },
    Layer {
        name: "optimizer state",
        color: [109, 168, 191],
        bytes: |bytes| bytes.optimizer_state,
    },
    Layer {
        name: "gradients",
        color: [204, 85, 51],
        bytes: |bytes| bytes.gradients,
    },
    Layer {
        name: "rest (activations)",
        color: [230, 190, 110],
        bytes: |bytes| bytes.rest,
    },
    Layer {
        name: "in use",
        color: [150, 160, 175],
        bytes: |bytes| bytes.unassigned,
    },
];

/// Name and color of the line of the reserved bytes.
pub(super) const RESERVED: (&str, Rgb) = ("reserved", [40, 40, 40]);

/// Returns the layers that have bytes in `timelines`.
pub(super) fn layers(timelines: &[(&str, &MemoryTimeline)]) -> Vec<&'static Layer> {
    let samples = || timelines.iter().flat_map(|(_, t)| &t.samples);
    let used = |layer: &&Layer| samples().any(|sample| (layer.bytes)(&sample.bytes) > 0);
    LAYERS.iter().filter(used).collect()
}

/// Returns the color of a phase; `None` outside of training.
pub(super) fn color(phase: &Phase) -> Option<Rgb> {
    match phase {
        Phase::Other => None,
        Phase::Forward => Some([120, 170, 90]),
        Phase::Backward => Some([150, 110, 170]),
        Phase::Update { .. } => Some([60, 60, 60]),
        Phase::Validation => Some([170, 170, 170]),
    }
}
