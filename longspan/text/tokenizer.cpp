#include "longspan/text/tokenizer.h"

#include <nlohmann/json.hpp>

#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/text/rust_call.h"

namespace longspan {

struct Tokenizer::Impl {
  LsrTokenizer* handle = nullptr;
  nlohmann::json info;

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { lsr_tokenizer_free(handle); }

  std::optional<std::string> known(const char* name) const {
    const auto found = info.find(name);
    if (found == info.end()) return std::nullopt;
    return found->get<std::string>();
  }
};

Tokenizer Tokenizer::load(const std::string& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "chat_template.jinja", "config.json", "adapter_config.json"}) {
    require_readable_file_if_there(folder + "/" + name, "tokenizer file");
  }
  auto impl = std::make_shared<Impl>();
  rust_call(lsr_tokenizer_load, rust_view(folder), &impl->handle);
  LsrString info{};
  rust_call(lsr_tokenizer_info, impl->handle, &info);
  impl->info = parse_json(take_rust_string(info), "tokenizer");
  Tokenizer tokenizer;
  tokenizer.impl_ = std::move(impl);
  return tokenizer;
}

namespace {

std::vector<int32_t> take_ids(LsrIds ids) {
  std::vector<int32_t> copy(ids.data, ids.data + ids.size);
  lsr_ids_free(ids);
  return copy;
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const LsrView view = rust_view(text);
  LsrIds ids{};
  rust_call(lsr_tokenizer_encode, impl_->handle, &view, size_t{1}, add_special_tokens, &ids);
  return take_ids(ids);
}

std::vector<std::vector<int32_t>> Tokenizer::encode_batch(const std::vector<std::string>& texts,
                                                          bool add_special_tokens) const {
  std::vector<LsrView> views;
  for (const std::string& text : texts) views.push_back(rust_view(text));
  std::vector<LsrIds> ids(texts.size());
  rust_call(lsr_tokenizer_encode, impl_->handle, views.data(), views.size(), add_special_tokens,
            ids.data());
  std::vector<std::vector<int32_t>> encoded;
  for (const LsrIds& one : ids) encoded.push_back(take_ids(one));
  return encoded;
}

EncodedText Tokenizer::encode_with_offsets(std::string_view text, bool add_special_tokens) const {
  LsrIds triples{};
  rust_call(lsr_tokenizer_encode_with_offsets, impl_->handle, rust_view(text), add_special_tokens,
            &triples);
  EncodedText encoded;
  for (size_t i = 0; i + 2 < triples.size; i += 3) {
    encoded.ids.push_back(static_cast<int32_t>(triples.data[i]));
    encoded.begin.push_back(triples.data[i + 1]);
    encoded.end.push_back(triples.data[i + 2]);
  }
  lsr_ids_free(triples);
  return encoded;
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const {
  const std::vector<uint32_t> unsigned_ids(ids.begin(), ids.end());
  LsrString text{};
  rust_call(lsr_tokenizer_decode, impl_->handle, unsigned_ids.data(), unsigned_ids.size(),
            skip_special_tokens, &text);
  return take_rust_string(text);
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  const int64_t id = lsr_tokenizer_id_of(impl_->handle, rust_view(token));
  if (id < 0) return std::nullopt;
  return static_cast<int32_t>(id);
}

int64_t Tokenizer::vocab_size() const { return impl_->info.at("vocab_size").get<int64_t>(); }
std::optional<std::string> Tokenizer::bos_token() const { return impl_->known("bos_token"); }
std::optional<std::string> Tokenizer::eos_token() const { return impl_->known("eos_token"); }
std::optional<std::string> Tokenizer::pad_token() const { return impl_->known("pad_token"); }
std::optional<std::string> Tokenizer::unk_token() const { return impl_->known("unk_token"); }
bool Tokenizer::adds_bos_token() const { return impl_->info.contains("add_bos_token"); }
std::optional<std::string> Tokenizer::chat_template() const {
  return impl_->known("chat_template");
}

void train_byte_level_bpe(const std::vector<std::string>& text_files, int64_t vocab_size,
                          const std::string& output_folder) {
  std::vector<LsrView> files;
  for (const std::string& file : text_files) {
    require_readable_file(file, "text file", kAnySize);
    files.push_back(rust_view(file));
  }
  rust_call(lsr_train_byte_level_bpe, files.data(), files.size(),
            static_cast<size_t>(vocab_size > 0 ? vocab_size : 0), rust_view(output_folder));
}

}  // namespace longspan
