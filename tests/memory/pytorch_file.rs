//! Files as PyTorch writes them.

use std::path::Path;

/// A tensor of a state dict.
pub struct Entry {
    pub name: String,
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// Writes a state dict of f32 tensors in the format of `torch.save` before version 1.6: pickles, then the numbers.
pub fn write(path: &Path, entries: &[Entry]) {
    let mut file = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.".to_vec();
    file.extend(b"\x80\x02M\xe9\x03.");
    file.extend(b"\x80\x02}(");
    string(&mut file, "little_endian");
    file.extend(b"\x88u.");
    file.extend(b"\x80\x02}(");
    for (key, entry) in entries.iter().enumerate() {
        string(&mut file, &entry.name);
        file.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        string(&mut file, "storage");
        file.extend(b"ctorch\nFloatStorage\n");
        string(&mut file, &key.to_string());
        string(&mut file, "cpu");
        int(&mut file, entry.values.len());
        file.extend(b"NtQK\x00(");
        entry.shape.iter().for_each(|size| int(&mut file, *size));
        file.extend(b"t(");
        for axis in 0..entry.shape.len() {
            int(&mut file, entry.shape[axis + 1..].iter().product());
        }
        file.extend(b"t\x89ccollections\nOrderedDict\n)RtR");
    }
    file.extend(b"u.\x80\x02](");
    (0..entries.len()).for_each(|key| string(&mut file, &key.to_string()));
    file.extend(b"e.");
    for entry in entries {
        file.extend((entry.values.len() as u64).to_le_bytes());
        entry
            .values
            .iter()
            .for_each(|value| file.extend(value.to_le_bytes()));
    }
    std::fs::write(path, file).unwrap();
}

fn string(file: &mut Vec<u8>, text: &str) {
    file.push(b'X');
    file.extend((text.len() as u32).to_le_bytes());
    file.extend(text.bytes());
}

fn int(file: &mut Vec<u8>, number: usize) {
    file.push(b'J');
    file.extend((number as i32).to_le_bytes());
}
