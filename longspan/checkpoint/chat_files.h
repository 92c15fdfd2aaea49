// The chat settings in a folder's files: chat template, end tokens and pad token.
#pragma once

#include <string>

#include "longspan/text/added_tokens.h"
#include "longspan/text/saved_chat.h"

namespace longspan {

/// Changes the files of a saved model or adapter so that transformers uses the settings of `chat`:
///   - tokenizer_config.json: chat_template, eos_token, pad_token;
///   - special_tokens_map.json and config.json's eos_token_id, where they exist;
///   - generation_config.json, whose present end tokens stay.
/// Does not change files that already have these settings. Throws UserError where a file cannot be
/// read or written.
///
/// Does not change pad_token_id in config.json: transformers computes no gradient for the embedding
/// of the token that this key names.
void write_chat(const std::string& folder, const SavedChat& chat);

/// Writes the tokens into a folder's tokenizer.json, if the folder has that file. Throws UserError.
void write_added_tokens(const std::string& folder, const AddedTokens& added);

}  // namespace longspan
