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

namespace longspan {

/// A token's place in the text, in bytes. Tokens that share a character share its bytes; some
/// tokenizers leave the white space before a word out.
struct EncodedText {
  std::vector<int32_t> ids;
  std::vector<size_t> begin, end;
};

/// Value handle; copies share the loaded tokenizer. Safe to use from several threads.
class Tokenizer {
 public:
  /// What it is made of, in its folder. All but the first may be missing.
  static constexpr const char* kFiles[] = {"tokenizer.json", "tokenizer_config.json",
                                           "special_tokens_map.json", "chat_template.jinja",
                                           "chat_template.json"};
  /// Reads tokenizer.json and tokenizer_config.json of a folder. Throws UserError naming the file.
  static Tokenizer load(const std::string& folder);

  /// Text -> ids. Special tokens in the text are recognised. add_special_tokens as in transformers
  /// (BOS etc. of the post-processor).
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = false) const;
  /// Many texts at once, in parallel.
  std::vector<std::vector<int32_t>> encode_batch(const std::vector<std::string>& texts,
                                                 bool add_special_tokens = false) const;
  /// The same with the piece of text that each token stands for.
  EncodedText encode_with_offsets(std::string_view text, bool add_special_tokens = false) const;
  std::string decode(const std::vector<int32_t>& ids, bool skip_special_tokens = false) const;
  std::optional<int32_t> id_of(std::string_view token) const;
  int64_t vocab_size() const;  // added tokens included

  /// As tokenizer_config.json names them; nullopt when absent.
  std::optional<std::string> bos_token() const;
  std::optional<std::string> eos_token() const;
  std::optional<std::string> pad_token() const;
  std::optional<std::string> unk_token() const;
  /// The tokens by which generation stops: eos_token, and those of end_tokens_in(folder).
  const std::set<int32_t>& end_tokens() const;
  /// Those by which transformers' generate() stops (EndTokens::of_generate).
  const std::set<int32_t>& end_tokens_of_generate() const;
  /// Whether tokenizer_config.json says add_bos_token: true.
  bool adds_bos_token() const;
  /// "tokenizer_config.json: not read: do_lower_case true": keys that nobody knows; mostly empty.
  std::string left_out() const;
  /// The one that transformers' AutoTokenizer finds: of chat_template.jinja, else of
  /// tokenizer_config.json. Else that of chat_template.json, which only AutoProcessor reads;
  /// nullopt when there is none.
  std::optional<std::string> chat_template() const;
  bool has_processor_template() const;  // of chat_template.json, and no other

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
