// What a folder's files say of chats: chat template, end and pad tokens.
#pragma once

#include <string>

#include "longspan/text/saved_chat.h"

namespace longspan {

/// Changes the files of a saved model (or adapter) so that transformers chats with it as `chat`
/// says: tokenizer_config.json (chat_template, eos_token, pad_token), special_tokens_map.json where
/// there is one, eos_token_id in config.json where there is one, and generation_config.json, in
/// which tokens that ended a text before go on doing so. Files that say all of it already stay as
/// they are. Throws UserError when a file cannot be read or written.
///
/// config.json's pad_token_id stays: transformers gives a token named there no embedding gradient.
void write_chat(const std::string& folder, const SavedChat& chat);

}  // namespace longspan
