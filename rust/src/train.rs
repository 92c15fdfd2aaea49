//! Trains a byte-level BPE tokenizer (Sennrich et al. 2016 on bytes, as in GPT-2 and Qwen2).

use std::borrow::Cow;
use std::io::Write;
use std::path::Path;

use serde_json::json;
use tokenizers::models::bpe::{BpeTrainer, BPE};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, DecoderWrapper, PostProcessorWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    TokenizerBuilder,
};

use crate::{files, Result, UserError};

/// Qwen2's pattern for splitting text into words.
pub const QWEN2_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + \
    message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Splits a text into parts of about `size` bytes that end at line ends.
fn pieces(text: &str, size: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let from = rest.len().min(size);
        let end = rest.as_bytes()[from..].iter().position(|&b| b == b'\n');
        let (piece, after) = rest.split_at(end.map_or(rest.len(), |i| from + i + 1));
        rest = after;
        Some(piece)
    })
}

pub fn byte_level_bpe(files: &[Cow<str>], vocab_size: usize, output_folder: &str) -> Result<()> {
    let least = 256 + SPECIAL.len();
    if vocab_size < least {
        return Err(UserError(format!(
            "A byte-level vocabulary of {vocab_size} tokens is too small: 256 bytes and {} special \
             tokens make {least} at least.",
            SPECIAL.len()
        )));
    }
    let mut texts = Vec::new();
    for file in files {
        texts.push(files::read_broken_text(Path::new(file.as_ref()))?);
    }

    let split = Split::new(
        SplitPattern::Regex(QWEN2_PATTERN.into()),
        SplitDelimiterBehavior::Isolated,
        false,
    )
    .expect("a pattern written here");
    let bytes = ByteLevel::new(false, true, false);
    let mut trainer = BpeTrainer::builder()
        .vocab_size(vocab_size)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(SPECIAL.iter().map(|token| AddedToken::from(*token, true)).collect())
        .build();
    let mut tokenizer = TokenizerBuilder::new()
        .with_model(BPE::default())
        .with_normalizer(Some(NFC))
        .with_pre_tokenizer(Some(Sequence::new(vec![
            PreTokenizerWrapper::Split(split),
            PreTokenizerWrapper::ByteLevel(bytes),
        ])))
        .with_post_processor(None::<PostProcessorWrapper>)
        .with_decoder(Some(DecoderWrapper::ByteLevel(ByteLevel::default())))
        .build()
        .expect("all parts are given");
    tokenizer
        .train(&mut trainer, texts.iter().flat_map(|text| pieces(text, 1 << 16)))
        .map_err(|e| UserError(format!("Training the tokenizer failed: {e}")))?;

    let folder = Path::new(output_folder);
    let config = json!({
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": false,
        "bos_token": null,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": null,
        "clean_up_tokenization_spaces": false,
        "model_max_length": 1_000_000_000u64,
        "chat_template": CHATML,
    });
    let failed = |e: &dyn std::fmt::Display| {
        UserError(format!("Cannot write the tokenizer to {output_folder}: {e}"))
    };
    std::fs::create_dir_all(folder).map_err(|e| failed(&e))?;
    let tokenizer = tokenizer.to_string(false).map_err(|e| failed(&e))?;
    let config = serde_json::to_string_pretty(&config).expect("plain JSON") + "\n";
    for (name, text) in [("tokenizer.json", tokenizer), ("tokenizer_config.json", config)] {
        write_whole(&folder.join(name), &text).map_err(|e| failed(&e))?;
    }
    Ok(())
}

/// Writes a file atomically, through a temporary name.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    files::create(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&temporary, path))
        .inspect_err(|_| drop(std::fs::remove_file(&temporary)))
}
