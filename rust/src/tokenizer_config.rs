//! The keys of tokenizer_config.json: which are read, which change no token, and which are neither.

use serde_json::{Map, Value as Json};

use crate::{Result, UserError};

/// Read in tokenizer.rs. Texts under keys that end in `_token` are tokens, and read as well.
const READ: [&str; 10] = [
    "added_tokens_decoder",
    "extra_special_tokens",
    "additional_special_tokens",
    "model_specific_special_tokens",
    "add_prefix_space",
    "add_bos_token",
    "legacy",
    "split_special_tokens",
    "tokenizer_class",
    "chat_template",
];

/// No token of a text depends on them, where there is a tokenizer.json.
const HARMLESS: [&str; 36] = [
    // tokenizer.json's post-processor says it (transformers 5 as well forgets the key).
    "add_eos_token",
    // Cutting and padding are the trainer's.
    "max_len",
    "max_length",
    "model_max_length",
    "pad_to_multiple_of",
    "pad_token_type_id",
    "padding",
    "padding_side",
    "stride",
    "truncation",
    "truncation_side",
    "truncation_strategy",
    // What a tokenizer returns beside tokens, and for whom.
    "model_input_names",
    "processor_class",
    "return_token_type_ids",
    "response_schema",
    "response_template",
    "verbose",
    // Where its files are or were.
    "files_loaded",
    "init_inputs",
    "is_local",
    "local_files_only",
    "merges_file",
    "name_or_path",
    "special_tokens_map_file",
    "tokenizer_file",
    "vocab_file",
    // Of decoding: transformers 5 leaves BPE's text as it is too.
    "clean_up_tokenization_spaces",
    "errors",
    // Used only by Python or sentencepiece tokenizers.
    "backend",
    "from_slow",
    "sp_model_kwargs",
    "spaces_between_special_tokens",
    "trust_remote_code",
    "use_fast",
    // Of a template that was part of transformers 4's class for Llama.
    "use_default_system_prompt",
];

/// Classes whose pipeline is that of tokenizer.json, and those that tokenizer.rs makes, without an
/// ending Fast.
const CLASSES: [&str; 6] = [
    "",
    "GemmaTokenizer",
    "LlamaTokenizer",
    "PreTrainedTokenizer",
    "Qwen2Tokenizer",
    "TokenizersBackend",
];

/// transformers replaces the pattern of these models' tokenizers where fix_mistral_regex says so.
const MISTRALS: [&str; 5] = ["mistral", "mistral3", "voxtral", "ministral", "pixtral"];
/// And where the vocabulary is larger than this.
const FIXED_ABOVE: usize = 100_000;

fn asks_for_nothing(value: &Json) -> bool {
    match value {
        Json::Null => true,
        Json::Bool(asks) => !asks,
        Json::String(text) => text.is_empty(),
        Json::Array(list) => list.is_empty(),
        Json::Object(map) => map.is_empty(),
        Json::Number(_) => false,
    }
}

/// Keys that are not known and ask for something, and a class that is not known, each with its
/// value. `class`: tokenizer_class.
pub fn not_read(config: &Map<String, Json>, class: &str) -> Vec<String> {
    let names_token = |key: &str, value: &Json| {
        key.ends_with("_token") && (value.is_string() || value.is_object())
    };
    let known = |key: &str| READ.contains(&key) || HARMLESS.contains(&key);
    let mut names: Vec<_> = config
        .iter()
        .filter(|(key, value)| !known(key) && !names_token(key, value) && !asks_for_nothing(value))
        .map(|(key, value)| format!("{key} {value}"))
        .collect();
    if !CLASSES.contains(&class.trim_end_matches("Fast")) {
        names.push(format!("tokenizer_class {class}"));
    }
    names
}

/// Refuses what would make other tokens of a text than tokenizer.json does.
pub fn check(config: &Map<String, Json>, model_type: &str, vocab_size: usize) -> Result<()> {
    let is_fixed = config.get("fix_mistral_regex").is_some_and(|value| !asks_for_nothing(value));
    if is_fixed && vocab_size > FIXED_ABOVE && MISTRALS.contains(&model_type) {
        return Err(UserError(
            "tokenizer_config.json: fix_mistral_regex is true, by which transformers splits texts \
             otherwise than tokenizer.json says; that is not supported. Load the tokenizer in \
             transformers and save it (AutoTokenizer.from_pretrained(folder).save_pretrained), and \
             remove the key."
                .into(),
        ));
    }
    Ok(())
}
