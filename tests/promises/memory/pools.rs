//! On a CubeCL device the recorder reads the memory pools.

use backburn::memory::{MemoryError, MemoryRecorder};

use crate::common::*;

#[test]
fn recording_of_device_without_pools_needs_allocator() {
    // This process runs on the system's allocator.
    let error = MemoryRecorder::start_on(&Device::flex()).unwrap_err();
    assert!(matches!(error, MemoryError::NotInstalled));
    assert!(error.to_string().contains("RecordingAllocator"));
}

#[cfg(feature = "wgpu")]
#[test]
fn recording_of_device_has_bytes_in_use_and_reserved() {
    use backburn::memory::{MemoryTimeline, Phase};

    let device = Device::wgpu(Default::default()).autodiff();
    let model = LinearConfig::new(512, 512).init(&device);
    let parameters = 4 * model.num_params();
    let mut fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
    let recorder = MemoryRecorder::start_on(&device).unwrap();
    let again = MemoryRecorder::start_on(&device);
    assert!(matches!(again, Err(MemoryError::AlreadyRecording)));
    for _ in 0..2 {
        let x = Tensor::<2>::ones([8, 512], &device);
        fused.step(1e-3, |model| model.forward(x).mean()).unwrap();
    }
    let timeline = recorder.finish().unwrap();

    // Parameters and both moments stay, so they exist during the whole second step.
    let peak = timeline.peak().bytes;
    assert!(peak.unassigned >= 3 * parameters, "{peak:?}");
    assert_eq!(peak.total(), peak.unassigned);
    for sample in &timeline.samples {
        assert!(sample.reserved.unwrap() >= sample.bytes.total());
    }
    let updates = timeline.marks.iter().filter(|mark| {
        let weight = Some("weight".to_string());
        mark.phase == Phase::Update { parameter: weight }
    });
    assert_eq!(updates.count(), 2);
    let text = timeline.to_string();
    assert!(
        text.contains("reserved at most") && text.contains("does not report"),
        "{text}"
    );
    let json = serde_json::to_string(&timeline).unwrap();
    assert_eq!(
        serde_json::from_str::<MemoryTimeline>(&json).unwrap(),
        timeline
    );
}
