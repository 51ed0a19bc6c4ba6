//! Labelled images: the handwritten digits of this example, or images of the user.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError};
use burn::prelude::*;
use flate2::read::GzDecoder;
use image::imageops::FilterType;
use image::{DynamicImage, GrayImage, ImageFormat};

/// "Optical Recognition of Handwritten Digits", see `data/README.md`.
const DIGITS: &[u8] = include_bytes!("data/digits.csv.gz");
const DIGITS_SIZE: u32 = 8;
const DIGITS_CLASSES: usize = 10;

/// Every fifth image is held out for validation.
const HOLD_OUT: usize = 5;

/// Images in two disjoint parts.
pub struct Split {
    pub train: Images,
    pub valid: Images,
    pub classes: usize,
}

impl Split {
    /// Returns the digits: 1,438 to train, 359 held out.
    pub fn digits() -> Result<Self> {
        let mut rows = csv::ReaderBuilder::new()
            .has_headers(false)
            .from_reader(GzDecoder::new(DIGITS));
        let mut images = Vec::new();
        for row in rows.deserialize::<Vec<u8>>() {
            let mut row = row.context("the digits can't be read")?;
            let label = row.pop().context("a digit has no label")?;
            // The pixels range from 0 to 16.
            let pixels = row.iter().map(|pixel| pixel.saturating_mul(16)).collect();
            let image = GrayImage::from_raw(DIGITS_SIZE, DIGITS_SIZE, pixels)
                .context("a digit is not 8 x 8")?;
            images.push((Source::Memory(image.into()), label.into()));
        }
        Ok(Self::of(images, DIGITS_CLASSES))
    }

    /// Returns the images under `folder`, with one folder for each class.
    pub fn folder(folder: &Path) -> Result<Self> {
        let classes = entries(folder)?.into_iter().filter(|path| path.is_dir());
        let classes: Vec<PathBuf> = classes.collect();
        ensure!(
            classes.len() > 1,
            "{} holds {} class folders: at least two are needed",
            folder.display(),
            classes.len()
        );
        let mut images = Vec::new();
        for (label, class) in classes.iter().enumerate() {
            let files = entries(class)?.into_iter().filter(|path| path.is_file());
            let before = images.len();
            for file in files {
                let format = ImageFormat::from_path(&file).ok();
                ensure!(
                    format.is_some_and(|format| format.reading_enabled()),
                    "{} is no image that this program reads: remove it",
                    file.display()
                );
                images.push((Source::File(file), label));
            }
            ensure!(
                images.len() > before,
                "{} holds no images, and would be a class: remove the folder",
                class.display()
            );
        }
        ensure!(
            images.len() >= HOLD_OUT,
            "{} holds {} images: at least {HOLD_OUT} are needed",
            folder.display(),
            images.len()
        );
        Ok(Self::of(images, classes.len()))
    }

    fn of(images: Vec<(Source, usize)>, classes: usize) -> Self {
        let (valid, train): (Vec<_>, Vec<_>) = images
            .into_iter()
            .enumerate()
            .partition(|(index, _)| index % HOLD_OUT == HOLD_OUT - 1);
        let strip = |part: Vec<(usize, _)>| part.into_iter().map(|(_, image)| image).collect();
        Self {
            train: Images(strip(train)),
            valid: Images(strip(valid)),
            classes,
        }
    }
}

/// Returns the entries of a folder by name, without hidden ones.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let context = || format!("folder {} can't be read", folder.display());
    let entries = std::fs::read_dir(folder).with_context(context)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<_> = paths.collect::<Result<_, _>>().with_context(context)?;
    let is_hidden = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with('.')
    };
    paths.retain(|path| !is_hidden(path));
    paths.sort();
    Ok(paths)
}

#[derive(Clone)]
enum Source {
    Memory(DynamicImage),
    File(PathBuf),
}

/// A set of labelled images.
#[derive(Clone)]
pub struct Images(Vec<(Source, usize)>);

/// An image with its class.
#[derive(Clone, Debug)]
pub struct Labelled {
    image: DynamicImage,
    label: usize,
}

impl Dataset<Labelled> for Images {
    fn get(&self, index: usize) -> Result<Labelled, DatasetError> {
        let (source, label) = &self.0[index];
        let image = match source {
            Source::Memory(image) => image.clone(),
            Source::File(path) => image::open(path).map_err(|error| {
                let path = path.display();
                DatasetError::new(std::io::Error::other(format!("image {path}: {error}")))
            })?,
        };
        let label = *label;
        Ok(Labelled { image, label })
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Images and labels of one step.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Shape `[batch, channels, size, size]`, values from -1 to 1.
    pub images: Tensor<4>,
    /// Shape `[batch]`.
    pub labels: Tensor<1, Int>,
}

/// A batcher that converts images to the size and the channels (1 or 3) of the model.
#[derive(Clone)]
pub struct ImageBatcher {
    pub size: usize,
    pub channels: usize,
}

impl ImageBatcher {
    fn pixels(&self, image: &DynamicImage) -> Vec<f32> {
        let size = self.size as u32;
        let image = match (image.width(), image.height()) == (size, size) {
            true => image.clone(),
            false => image.resize_exact(size, size, FilterType::Triangle),
        };
        let bytes = match self.channels {
            1 => image.into_luma8().into_raw(),
            _ => image.into_rgb8().into_raw(),
        };
        // Converts interleaved channels to planar channels.
        let channel = |channel| bytes.iter().skip(channel).step_by(self.channels);
        let channels = (0..self.channels).flat_map(channel);
        channels.map(|byte| *byte as f32 / 127.5 - 1.0).collect()
    }
}

impl Batcher<Labelled, Batch> for ImageBatcher {
    fn batch(&self, items: Vec<Labelled>, device: &Device) -> Batch {
        let shape = [items.len(), self.channels, self.size, self.size];
        let pixels: Vec<f32> = items.iter().flat_map(|i| self.pixels(&i.image)).collect();
        let labels: Vec<i64> = items.iter().map(|item| item.label as i64).collect();
        Batch {
            images: Tensor::from_data(TensorData::new(pixels, shape), device),
            labels: Tensor::from_data(TensorData::new(labels, [items.len()]), device),
        }
    }
}
