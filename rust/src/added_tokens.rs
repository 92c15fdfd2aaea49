//! Tokens that a run adds to a tokenizer, with the ids of transformers' add_tokens().

use serde_json::{json, Value as Json};
use tokenizers::AddedToken;

use crate::tokenizer::{read_object, HfTokenizer};
use crate::{guard, of_a_stranger, owned, slice, Owned, Result, UserError, View};

impl HfTokenizer {
    /// Tokens of the vocabulary keep their ids.
    fn add(&mut self, texts: Vec<String>, special: bool) -> Result<()> {
        let tokens: Vec<_> = texts.iter().map(|text| AddedToken::from(text, special)).collect();
        let tokenizer = &mut self.tokenizer;
        of_a_stranger(&self.path.display(), || {
            tokenizer
                .add_tokens(tokens)
                .map_err(|e| UserError(format!("The tokenizer cannot add tokens: {e}")))
        })?;
        self.added.extend(texts);
        Ok(())
    }

    /// Returns the text of tokenizer.json with all added tokens. A file with some of them would
    /// number the others anew.
    fn file_text(&self) -> Result<String> {
        let broken = || UserError(format!("{} has changed since it was read.", self.path.display()));
        let mut file = read_object(self.path.clone())?.ok_or_else(broken)?;
        let mut listed = match file.remove("added_tokens") {
            Some(Json::Array(listed)) => listed,
            _ => Vec::new(),
        };
        let decoder = self.tokenizer.get_added_vocabulary().get_added_tokens_decoder().iter();
        let mut tokens: Vec<_> = decoder.collect();
        tokens.sort_by_key(|(id, _)| **id);
        for (id, token) in tokens {
            let entry = json!({"id": id, "content": token.content,
                "single_word": token.single_word, "lstrip": token.lstrip, "rstrip": token.rstrip,
                "normalized": token.normalized, "special": token.special});
            match listed.iter().position(|other| other["content"] == token.content.as_str()) {
                Some(place) if self.added.contains(&token.content) => listed[place] = entry,
                Some(_) => {}
                None => listed.push(entry),
            }
        }
        file.insert("added_tokens".into(), listed.into());
        Ok(Json::Object(file).to_string() + "\n")
    }
}

#[no_mangle]
pub unsafe extern "C" fn lsr_tokenizer_add(
    tokenizer: *mut HfTokenizer,
    tokens: *const View,
    num_tokens: usize,
    special: bool,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let texts = slice(tokens, num_tokens).iter().map(|view| view.text().into_owned()).collect();
        (*tokenizer).add(texts, special)
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_tokenizer_file(
    tokenizer: *const HfTokenizer,
    json: *mut Owned<u8>,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        json.write(owned((*tokenizer).file_text()?));
        Ok(())
    })
}
