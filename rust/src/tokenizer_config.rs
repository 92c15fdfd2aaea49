//! The keys of tokenizer_config.json: read, without effect on tokens, or neither.

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

/// Without effect on a text's tokens if there is a tokenizer.json.
const HARMLESS: [&str; 36] = [
    // tokenizer.json's post-processor decides (transformers 5 ignores the key too).
    "add_eos_token",
    // The trainer does truncation and padding.
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
    // Other outputs of a tokenizer, and their users.
    "model_input_names",
    "processor_class",
    "return_token_type_ids",
    "response_schema",
    "response_template",
    "verbose",
    // Present or earlier places of its files.
    "files_loaded",
    "init_inputs",
    "is_local",
    "local_files_only",
    "merges_file",
    "name_or_path",
    "special_tokens_map_file",
    "tokenizer_file",
    "vocab_file",
    // Only for decoding: transformers 5 leaves BPE's text unchanged too.
    "clean_up_tokenization_spaces",
    "errors",
    // Only for Python or sentencepiece tokenizers.
    "backend",
    "from_slow",
    "sp_model_kwargs",
    "spaces_between_special_tokens",
    "trust_remote_code",
    "use_fast",
    // Only for a template in transformers 4's class for Llama.
    "use_default_system_prompt",
];

/// Classes with the pipeline of tokenizer.json, and those that tokenizer.rs builds, without the
/// ending Fast.
const CLASSES: [&str; 6] = [
    "",
    "GemmaTokenizer",
    "LlamaTokenizer",
    "PreTrainedTokenizer",
    "Qwen2Tokenizer",
    "TokenizersBackend",
];

/// With fix_mistral_regex, transformers replaces the pattern of these models' tokenizers.
const MISTRALS: [&str; 5] = ["mistral", "mistral3", "voxtral", "ministral", "pixtral"];
/// And only for larger vocabularies than this.
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

/// Returns the unknown keys that ask for something, and an unknown class, each with its value.
/// `class`: tokenizer_class.
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

/// Refuses settings that would give other tokens than tokenizer.json.
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
