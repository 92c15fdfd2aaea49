//! Loads the tokenizer of a Hugging Face folder as transformers' AutoTokenizer does.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde_json::{json, Map, Value as Json};
use tokenizers::{AddedToken, Tokenizer};

use crate::train::QWEN2_PATTERN;
use crate::{files, json, of_a_stranger, tokenizer_checks, tokenizer_config, Result, UserError};

pub struct HfTokenizer {
    /// Path of its tokenizer.json.
    pub path: PathBuf,
    pub tokenizer: Tokenizer,
    /// The tokens of the run, beside those of the files.
    pub added: Vec<String>,
    config: Map<String, Json>,
    /// Unread keys of the config, with their values.
    not_read: Vec<String>,
    chat_template: Option<String>,
    /// Used if the tokenizer has none.
    processor_template: Option<String>,
}

/// Classes of transformers that replace tokenizer.json's pipeline by their own.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    AsInFile,
    Qwen2,
    Llama,
    /// Keeps the pipeline of its files; only its default tokens are used.
    Gemma,
}

const NAMED_TOKENS: [&str; 7] = [
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
];

/// Limit of a file that is read whole; the largest vocabularies take 35 MB.
const MAX_FILE: u64 = 96 << 20;

pub fn read_object(path: PathBuf) -> Result<Option<Map<String, Json>>> {
    let Some(text) = files::read_text_if_there(&path, MAX_FILE)? else { return Ok(None) };
    let parsed: Json = json::parse(&text)
        .map_err(|e| UserError(format!("{}{}: {}", path.display(), e.place, e.what)))?;
    match parsed {
        Json::Object(map) => Ok(Some(map)),
        _ => Err(UserError(format!("{} should hold a JSON object.", path.display()))),
    }
}

/// Returns a token given as "text" or as {"content": "text", ...}.
fn token_text(token: &Json) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

fn added_token(token: &Json, special_by_default: bool) -> Option<AddedToken> {
    let flag = |name: &str| token.get(name).and_then(Json::as_bool);
    let special = flag("special").unwrap_or(special_by_default);
    let added = AddedToken::from(token_text(token)?, special)
        .single_word(flag("single_word").unwrap_or(false))
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false))
        .normalized(flag("normalized").unwrap_or(!special));
    Some(added)
}

fn is_byte_level(file: &Map<String, Json>) -> bool {
    ["pre_tokenizer", "decoder"]
        .iter()
        .any(|part| file.get(*part).is_some_and(|p| p.to_string().contains("\"ByteLevel\"")))
}

/// Returns the class that AutoTokenizer chooses: Qwen2Tokenizer for every qwen2 model; a
/// LlamaTokenizer over byte-level BPE keeps the file's pipeline.
fn class_of(model_type: &str, class: &str, file: &Map<String, Json>) -> Class {
    let is_bpe = file["model"]["type"] == "BPE" || file["model"].get("merges").is_some();
    match class.trim_end_matches("Fast") {
        _ if !is_bpe => Class::AsInFile,
        _ if model_type == "qwen2" => Class::Qwen2,
        "Qwen2Tokenizer" => Class::Qwen2,
        "LlamaTokenizer" if matches!(model_type, "" | "llama") && !is_byte_level(file) => {
            Class::Llama
        }
        "GemmaTokenizer" => Class::Gemma,
        _ => Class::AsInFile,
    }
}

/// Sets the class's pipeline; vocabulary, merges, added tokens and post-processor stay the file's.
fn set_pipeline(file: &mut Map<String, Json>, class: Class, config: &Map<String, Json>) {
    let prefix_space = config.get("add_prefix_space").and_then(Json::as_bool);
    let (normalizer, pre_tokenizer, decoder, fuse_unk, byte_fallback) = match class {
        Class::AsInFile | Class::Gemma => return,
        Class::Qwen2 => (
            json!({"type": "NFC"}),
            json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": QWEN2_PATTERN}, "behavior": "Isolated",
                 "invert": false},
                {"type": "ByteLevel", "add_prefix_space": prefix_space.unwrap_or(false),
                 "trim_offsets": true, "use_regex": false}]}),
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                   "use_regex": true}),
            false,
            false,
        ),
        Class::Llama => {
            let legacy = config.get("legacy").and_then(Json::as_bool).unwrap_or(false);
            let scheme = match (prefix_space.unwrap_or(true), legacy) {
                (false, _) => "never",
                (true, true) => "always",
                (true, false) => "first",
            };
            let mut steps = vec![
                json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
                json!({"type": "ByteFallback"}),
                json!({"type": "Fuse"}),
            ];
            if prefix_space.unwrap_or(true) {
                steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
            }
            (
                Json::Null,
                json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme,
                       "split": false}),
                json!({"type": "Sequence", "decoders": steps}),
                true,
                true,
            )
        }
    };
    file.insert("normalizer".into(), normalizer);
    file.insert("pre_tokenizer".into(), pre_tokenizer);
    file.insert("decoder".into(), decoder);
    if let Some(model) = file.get_mut("model").and_then(Json::as_object_mut) {
        model.insert("type".into(), "BPE".into());
        for (key, value) in [
            ("unk_token", Json::Null),
            ("dropout", Json::Null),
            ("continuing_subword_prefix", Json::Null),
            ("end_of_word_suffix", Json::Null),
            ("ignore_merges", false.into()),
            ("fuse_unk", fuse_unk.into()),
            ("byte_fallback", byte_fallback.into()),
        ] {
            model.insert(key.into(), value);
        }
    }
}

/// Sets the class's default names for tokens that the config does not name.
fn set_default_tokens(config: &mut Map<String, Json>, class: Class) {
    let defaults: &[(&str, &str)] = match class {
        Class::AsInFile => &[],
        Class::Qwen2 => &[
            ("unk_token", "<|endoftext|>"),
            ("eos_token", "<|endoftext|>"),
            ("pad_token", "<|endoftext|>"),
        ],
        Class::Llama => &[("unk_token", "<unk>"), ("bos_token", "<s>"), ("eos_token", "</s>")],
        Class::Gemma => &[
            ("unk_token", "<unk>"),
            ("bos_token", "<bos>"),
            ("eos_token", "<eos>"),
            ("pad_token", "<pad>"),
            ("mask_token", "<mask>"),
        ],
    };
    for (name, token) in defaults {
        config.entry(*name).or_insert_with(|| Json::from(*token));
    }
}

/// A class that builds its own pipeline makes every token of the config special.
fn set_named_tokens_special(file: &mut Map<String, Json>, config: &Map<String, Json>) {
    let named: Vec<_> =
        NAMED_TOKENS.iter().filter_map(|name| token_text(config.get(*name)?)).collect();
    let Some(Json::Array(added)) = file.get_mut("added_tokens") else { return };
    for token in added.iter_mut().filter_map(Json::as_object_mut) {
        if token.get("content").and_then(Json::as_str).is_some_and(|text| named.contains(&text)) {
            token.insert("special".into(), true.into());
        }
    }
}

/// Adds tokens of the config that tokenizer.json does not list, in transformers' order.
fn add_missing_tokens(tokenizer: &mut Tokenizer, config: &Map<String, Json>) {
    let mut missing: Vec<AddedToken> = Vec::new();
    let known = tokenizer.get_added_vocabulary().get_vocab().clone();
    let mut consider = |token: &Json, special: bool| {
        if let Some(token) = added_token(token, special) {
            let listed = known.contains_key(&token.content)
                || missing.iter().any(|other| other.content == token.content);
            if !listed {
                missing.push(token);
            }
        }
    };
    if let Some(Json::Object(listed)) = config.get("added_tokens_decoder") {
        let mut by_id: Vec<_> = listed.iter().collect();
        by_id.sort_by_key(|(id, _)| id.parse::<u64>().unwrap_or(u64::MAX));
        by_id.iter().for_each(|(_, token)| consider(token, false));
    }
    let others = config.keys().filter(|k| k.ends_with("_token") && config[*k].is_string());
    for name in NAMED_TOKENS.iter().copied().chain(others.map(String::as_str)) {
        if let Some(token) = config.get(name) {
            consider(token, true);
        }
    }
    for name in
        ["extra_special_tokens", "additional_special_tokens", "model_specific_special_tokens"]
    {
        match config.get(name) {
            Some(Json::Array(tokens)) => tokens.iter().for_each(|token| consider(token, true)),
            Some(Json::Object(tokens)) => tokens.values().for_each(|token| consider(token, true)),
            _ => {}
        }
    }
    if !missing.is_empty() {
        // Fails only for tokens that the normalizer breaks; the rest of the vocabulary is valid.
        let _ = tokenizer.add_tokens(missing);
    }
}

/// Returns a template, or the default one of several.
fn default_template(json: &Json) -> Option<String> {
    let text = |json: &Json| json.as_str().map(str::to_string);
    match json {
        Json::Array(named) => named
            .iter()
            .find(|entry| entry["name"] == "default")
            .and_then(|entry| text(&entry["template"])),
        Json::Object(named) => named.get("default").and_then(text),
        other => text(other),
    }
}

/// As AutoTokenizer finds it: in a separate file, else in the config.
fn chat_template(folder: &Path, config: &Map<String, Json>) -> Result<Option<String>> {
    if let Some(text) = files::read_text_if_there(&folder.join("chat_template.jinja"), MAX_FILE)? {
        return Ok(Some(text));
    }
    Ok(config.get("chat_template").and_then(default_template))
}

/// The file of processors in transformers before chat_template.jinja.
fn processor_template(folder: &Path) -> Result<Option<String>> {
    let path = folder.join("chat_template.json");
    let Some(file) = read_object(path.clone())? else { return Ok(None) };
    match file.get("chat_template").and_then(default_template) {
        Some(template) => Ok(Some(template)),
        None => Err(UserError(format!(
            "{} has no text \"chat_template\". Put the model's own file there, or remove it.",
            path.display()
        ))),
    }
}

impl HfTokenizer {
    pub fn load(folder: &Path) -> Result<HfTokenizer> {
        let path = folder.join("tokenizer.json");
        let Some(mut file) = read_object(path.clone())? else {
            return Err(UserError(format!(
                "No tokenizer.json in {}. It comes with a Hugging Face model; for an older model \
                 write it with transformers: AutoTokenizer.from_pretrained(folder)\
                 .save_pretrained(folder).",
                folder.display()
            )));
        };
        if !file.get("model").is_some_and(Json::is_object) {
            return Err(UserError(format!("{} has no \"model\".", path.display())));
        }
        let mut config = read_object(folder.join("tokenizer_config.json"))?.unwrap_or_default();
        if !config.contains_key("added_tokens_decoder") {
            // Before transformers 4.34 the special tokens had a separate file.
            config.extend(read_object(folder.join("special_tokens_map.json"))?.unwrap_or_default());
        }
        let string = |map: &Map<String, Json>, key: &str| {
            map.get(key).and_then(Json::as_str).unwrap_or_default().to_string()
        };
        let mut model = read_object(folder.join("config.json"))?;
        if model.is_none() {
            // The model of an adapter is elsewhere.
            if let Some(adapter) = read_object(folder.join("adapter_config.json"))? {
                let base = string(&adapter, "base_model_name_or_path");
                model = read_object(Path::new(&base).join("config.json"))?;
            }
        }
        let model = model.unwrap_or_default();
        let declared = match string(&config, "tokenizer_class") {
            name if name.is_empty() => string(&model, "tokenizer_class"),
            name => name,
        };
        let model_type = string(&model, "model_type");
        let class = class_of(&model_type, &declared, &file);
        let not_read = tokenizer_config::not_read(&config, &declared);
        set_default_tokens(&mut config, class);
        // The trainer does truncation and padding.
        file.insert("truncation".into(), Json::Null);
        file.insert("padding".into(), Json::Null);
        let broken = |e| UserError(format!("{} is not a tokenizer: {e}", path.display()));
        tokenizer_checks::check_dropout(&file).map_err(broken)?;
        set_pipeline(&mut file, class, &config);
        if class != Class::AsInFile {
            set_named_tokens_special(&mut file, &config);
        }

        tokenizer_checks::check(&file).map_err(broken)?;
        let tokenizer = of_a_stranger(&path.display(), || {
            let mut tokenizer: Tokenizer =
                serde_json::from_value(Json::Object(file)).map_err(|e| broken(e.to_string()))?;
            add_missing_tokens(&mut tokenizer, &config);
            let split = config.get("split_special_tokens").and_then(Json::as_bool).unwrap_or(false);
            tokenizer.set_encode_special_tokens(split);
            tokenizer_checks::try_out(&tokenizer);
            Ok(tokenizer)
        })?;
        tokenizer_config::check(&config, &model_type, tokenizer.get_vocab_size(true))?;
        let chat_template = chat_template(folder, &config)?;
        let processor_template = match chat_template {
            Some(_) => None,
            None => processor_template(folder)?,
        };
        let added = Vec::new();
        Ok(HfTokenizer { path, tokenizer, added, config, not_read, chat_template, processor_template })
    }

    pub fn info(&self) -> Json {
        let mut info = Map::new();
        info.insert("vocab_size".into(), self.tokenizer.get_vocab_size(true).into());
        for name in NAMED_TOKENS {
            if let Some(token) = self.config.get(name).and_then(token_text) {
                info.insert(name.into(), token.into());
            }
        }
        if self.config.get("add_bos_token") == Some(&Json::Bool(true)) {
            info.insert("add_bos_token".into(), true.into());
        }
        info.insert("not_read".into(), self.not_read.clone().into());
        for (name, template) in [
            ("chat_template", &self.chat_template),
            ("processor_template", &self.processor_template),
        ] {
            if let Some(template) = template {
                info.insert(name.into(), template.clone().into());
            }
        }
        Json::Object(info)
    }

    pub fn encode(
        &self,
        texts: Vec<Cow<'_, str>>,
        add_special_tokens: bool,
    ) -> Result<Vec<Vec<u32>>> {
        let failed = |e| UserError(format!("The tokenizer cannot encode a text: {e}"));
        of_a_stranger(&self.path.display(), || {
            if let [text] = &texts[..] {
                let encoding = self.tokenizer.encode_fast(text.as_ref(), add_special_tokens);
                return Ok(vec![encoding.map_err(failed)?.get_ids().to_vec()]);
            }
            let encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens);
            Ok(encodings.map_err(failed)?.iter().map(|e| e.get_ids().to_vec()).collect())
        })
    }

    /// Returns id, begin and end of each token; begin and end are byte offsets into the text.
    pub fn encode_with_offsets(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        if u32::try_from(text.len()).is_err() {
            return Err(UserError(format!("A text of {} bytes is too long.", text.len())));
        }
        let encoding = of_a_stranger(&self.path.display(), || {
            self.tokenizer
                .encode(text, add_special_tokens)
                .map_err(|e| UserError(format!("The tokenizer cannot encode a text: {e}")))
        })?;
        let places = encoding.get_ids().iter().zip(encoding.get_offsets());
        Ok(places.flat_map(|(id, (begin, end))| [*id, *begin as u32, *end as u32]).collect())
    }

    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        of_a_stranger(&self.path.display(), || {
            self.tokenizer
                .decode(ids, skip_special_tokens)
                .map_err(|e| UserError(format!("The tokenizer cannot decode: {e}")))
        })
    }

    pub fn id_of(&self, token: &str) -> i64 {
        self.tokenizer.token_to_id(token).map_or(-1, i64::from)
    }
}
