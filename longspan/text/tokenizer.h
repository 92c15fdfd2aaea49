// Tokenizer of a Hugging Face model folder. No torch. (Backed by the `tokenizers` crate, see
// rust/.)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/text/added_tokens.h"

namespace longspan {

/// The bytes of each token in the text. Tokens that share a character share its bytes; some
/// tokenizers leave out the white space before a word.
struct EncodedText {
  std::vector<int32_t> ids;
  std::vector<size_t> begin, end;
};

/// Value handle; copies share the loaded tokenizer. Thread-safe.
class Tokenizer {
 public:
  /// The files of a tokenizer in a folder. All but the first are optional.
  static constexpr const char* kFiles[] = {"tokenizer.json", "tokenizer_config.json",
                                           "special_tokens_map.json", "chat_template.jinja",
                                           "chat_template.json"};
  /// Reads tokenizer.json and tokenizer_config.json of a folder, and adds tokens. Throws UserError
  /// that names the file.
  static Tokenizer load(const std::string& folder, const AddedTokens& added = {});

  /// Encodes a text. Special tokens in the text are recognised. `add_special_tokens`: as in
  /// transformers (BOS etc. of the post-processor).
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = false) const;
  /// Encodes many texts in parallel.
  std::vector<std::vector<int32_t>> encode_batch(const std::vector<std::string>& texts,
                                                 bool add_special_tokens = false) const;
  /// As encode(), with the byte range of each token.
  EncodedText encode_with_offsets(std::string_view text, bool add_special_tokens = false) const;
  std::string decode(const std::vector<int32_t>& ids, bool skip_special_tokens = false) const;
  std::optional<int32_t> id_of(std::string_view token) const;
  int64_t vocab_size() const;  // including added tokens

  /// Returns the text of tokenizer.json with all added tokens.
  std::string file_text() const;

  /// As in tokenizer_config.json; nullopt if missing.
  std::optional<std::string> bos_token() const;
  std::optional<std::string> eos_token() const;
  std::optional<std::string> pad_token() const;
  std::optional<std::string> unk_token() const;
  /// Returns the tokens that end generation: eos_token, and the tokens of end_tokens_in(folder).
  const std::set<int32_t>& end_tokens() const;
  /// Returns the tokens at which transformers' generate() stops (EndTokens::of_generate).
  const std::set<int32_t>& end_tokens_of_generate() const;
  /// True if tokenizer_config.json has add_bos_token: true.
  bool adds_bos_token() const;
  /// Lists unknown keys, e.g. "tokenizer_config.json: not read: do_lower_case true"; usually empty.
  std::string left_out() const;
  /// Returns the template of transformers' AutoTokenizer: chat_template.jinja, else
  /// tokenizer_config.json. Otherwise the template of chat_template.json, which only AutoProcessor
  /// reads; nullopt if the folder has no template.
  std::optional<std::string> chat_template() const;
  bool has_processor_template() const;  // only chat_template.json has a template

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

/// Trains a byte-level BPE tokenizer on text files and writes a Hugging Face tokenizer folder
/// (tokenizer.json, tokenizer_config.json with the chatml template, special tokens <|endoftext|>,
/// <|im_start|>, <|im_end|>).
void train_byte_level_bpe(const std::vector<std::string>& text_files, int64_t vocab_size,
                          const std::string& output_folder);

}  // namespace longspan
