//! Memory of the tokenizer, in a process of its own.

use std::path::Path;

use peak_alloc::PeakAlloc;

use finetune::config::DecoderConfig;
use finetune::tokens::Tokens;

#[global_allocator]
static BYTES: PeakAlloc = PeakAlloc;

#[test]
fn long_text_is_tokenized_in_little_memory() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/llama");
    let tokens = Tokens::read(&folder, &DecoderConfig::read(&folder).unwrap()).unwrap();
    let line = |number: usize| format!("The model learns line {number}.\n");
    let text: String = (0..30_000).map(line).collect();
    let before = BYTES.current_usage();
    BYTES.reset_peak_usage();
    let document = tokens.text(&text).unwrap();
    let peak = BYTES.peak_usage() - before;
    println!(
        "{} bytes of text, {} tokens, {peak} bytes at the peak",
        text.len(),
        document.tokens.len()
    );
    // A token takes 4 bytes, and a list that grows up to three times as many.
    assert!(peak < 24 * document.tokens.len(), "{peak}");
}
