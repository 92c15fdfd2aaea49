//! Refuses contents of a tokenizer.json that would make the tokenizers crate panic, allocate
//! without limit, or return different ids each time. Also tests a loaded tokenizer.

use serde_json::{Map, Value as Json};
use tokenizers::Tokenizer;

/// Limit of nested sequences; each level is read several times.
const MAX_SEQUENCES: usize = 8;

/// True if `charsmap`, in base64, has the length in its first four bytes.
fn has_whole_trie(charsmap: &str) -> bool {
    let mut bits = 0u64;
    for c in charsmap.bytes().take(8) {
        let digit = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return false,
        };
        bits = bits << 6 | u64::from(digit);
    }
    // Six bytes, the first one highest; the size is the first four, little endian.
    let size = ((bits >> 16) as u32).swap_bytes() as usize;
    // 256 units hold one node's children.
    (1024..charsmap.len() / 4 * 3).contains(&size)
}

fn check_part(place: &str, part: &Json, sequences: usize) -> Result<(), String> {
    let kind = part.get("type").and_then(Json::as_str).unwrap_or_default();
    let pattern = ["String", "Regex"].iter().find_map(|of| part.get("pattern")?.get(of)?.as_str());
    match kind {
        "FixedLength" if part.get("length").and_then(Json::as_u64) == Some(0) => {
            return Err(format!("{place}: FixedLength of length 0 cuts text into nothing"));
        }
        "Replace" | "Split" if pattern == Some("") => {
            return Err(format!("{place}: the pattern of {kind} is empty"));
        }
        "Precompiled" => {
            let charsmap = part.get("precompiled_charsmap").and_then(Json::as_str);
            if !charsmap.is_some_and(has_whole_trie) {
                return Err(format!("{place}: precompiled_charsmap is broken"));
            }
        }
        "Sequence" if sequences == MAX_SEQUENCES => {
            return Err(format!("{place}: sequences are nested deeper than {MAX_SEQUENCES} levels"));
        }
        _ => {}
    }
    for list in ["normalizers", "pretokenizers", "processors", "decoders"] {
        for inner in part.get(list).and_then(Json::as_array).into_iter().flatten() {
            check_part(place, inner, sequences + 1)?;
        }
    }
    Ok(())
}

/// Checks a whole file, before a class replaces its pipeline.
pub fn check_dropout(file: &Map<String, Json>) -> Result<(), String> {
    let dropout = file.get("model").and_then(|model| model.get("dropout"));
    if dropout.filter(|dropout| !dropout.is_null()).is_some_and(|dropout| dropout.as_f64() != Some(0.0)) {
        return Err("model: dropout draws other tokens each time, so that neither processes nor a \
                    resumed run agree with one another; set it to null"
            .into());
    }
    Ok(())
}

fn check_model(model: &Json) -> Result<(), String> {
    match model.get("vocab") {
        Some(Json::Object(ids)) => {
            for (token, id) in ids {
                if !id.as_i64().is_some_and(|id| (0..=i64::from(i32::MAX)).contains(&id)) {
                    return Err(format!("model: the id of {token:?} is {id}, not 0 to {}", i32::MAX));
                }
            }
            Ok(())
        }
        Some(Json::Array(pieces)) if pieces.is_empty() => Err("model: its vocabulary is empty".into()),
        _ => Ok(()),
    }
}

/// Checks a tokenizer.json before it is given to the crate.
pub fn check(file: &Map<String, Json>) -> Result<(), String> {
    for place in ["normalizer", "pre_tokenizer", "post_processor", "decoder"] {
        if let Some(part) = file.get(place) {
            check_part(place, part, 0)?;
        }
    }
    for token in file.get("added_tokens").and_then(Json::as_array).into_iter().flatten() {
        let id = token.get("id").and_then(Json::as_i64).unwrap_or(0);
        if !(0..=i64::from(i32::MAX)).contains(&id) {
            return Err(format!("added_tokens: an id is {id}, not 0 to {}", i32::MAX));
        }
    }
    file.get("model").map_or(Ok(()), check_model)
}

/// Encodes and decodes text of all kinds, so that a panic occurs at load.
pub fn try_out(tokenizer: &Tokenizer) {
    for text in ["", " ", "The number 12, been\n\t and gone. ", "été Ünï\u{301} 日本語 🙂\u{200d}\0"] {
        for with_special in [false, true] {
            if let Ok(encoding) = tokenizer.encode(text, with_special) {
                let _ = tokenizer.decode(encoding.get_ids(), false);
            }
        }
    }
}
