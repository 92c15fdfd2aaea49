#include "longspan/text/tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"
#include "longspan/input/numbers.h"
#include "longspan/text/end_tokens.h"
#include "longspan/text/rust_call.h"
#include "longspan/text/shown.h"

namespace longspan {

struct Tokenizer::Impl {
  LsrTokenizer* handle = nullptr;
  nlohmann::json info;
  EndTokens end_tokens;

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

namespace {

void add(LsrTokenizer* tokenizer, const std::vector<std::string>& tokens, bool special) {
  std::vector<LsrView> views;
  for (const std::string& token : tokens) views.push_back(rust_view(token));
  if (!views.empty()) {
    rust_call(lsr_tokenizer_add, tokenizer, views.data(), views.size(), special);
  }
}

}  // namespace

Tokenizer Tokenizer::load(const std::string& folder, const AddedTokens& added) {
  const auto require_readable = [&](const char* name) {
    require_readable_file_if_there(folder + "/" + name, "tokenizer file");
  };
  for (const char* name : kFiles) require_readable(name);
  for (const char* config : {"config.json", "adapter_config.json"}) require_readable(config);
  auto impl = std::make_shared<Impl>();
  require_own_files(folder);
  rust_call(lsr_tokenizer_load, rust_view(folder), &impl->handle);
  add(impl->handle, added.plain, /*special=*/false);
  add(impl->handle, added.special, /*special=*/true);
  LsrString info{};
  rust_call(lsr_tokenizer_info, impl->handle, &info);
  impl->info = parse_json(take_rust_string(info), "tokenizer");
  impl->end_tokens = end_tokens_in(folder);
  if (const auto eos = impl->known("eos_token")) {
    const int64_t id = lsr_tokenizer_id_of(impl->handle, rust_view(*eos));
    if (id >= 0 && id <= kMostIndexed) impl->end_tokens.all.insert(static_cast<int32_t>(id));
  }
  Tokenizer tokenizer;
  tokenizer.impl_ = std::move(impl);
  return tokenizer;
}

namespace {

/// Tokenizer files may use ids up to 2^32; those of models end far below 2^31.
int32_t token_id(int64_t id) {
  if (id >= 0 && id <= kMostIndexed) return static_cast<int32_t>(id);
  throw UserError(
      fmt::format("tokenizer.json numbers a token {}; ids must be at most {}. Put the model's own "
                  "tokenizer into its folder.",
                  id, kMostIndexed));
}

/// Owns lists of ids made by the archive until they are copied.
struct IdLists {
  explicit IdLists(size_t size) : lists(size) {}
  ~IdLists() {
    for (const LsrIds& ids : lists) {
      if (ids.data != nullptr) lsr_ids_free(ids);
    }
  }
  IdLists(const IdLists&) = delete;
  IdLists& operator=(const IdLists&) = delete;

  std::vector<LsrIds> lists;
};

std::vector<int32_t> copy_of(const LsrIds& ids) {
  std::vector<int32_t> copy(ids.size);
  std::transform(ids.data, ids.data + ids.size, copy.begin(),
                 [](uint32_t id) { return token_id(id); });
  return copy;
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const LsrView view = rust_view(text);
  IdLists ids(1);
  rust_call(lsr_tokenizer_encode, impl_->handle, &view, size_t{1}, add_special_tokens,
            ids.lists.data());
  return copy_of(ids.lists[0]);
}

std::vector<std::vector<int32_t>> Tokenizer::encode_batch(const std::vector<std::string>& texts,
                                                          bool add_special_tokens) const {
  std::vector<LsrView> views;
  for (const std::string& text : texts) views.push_back(rust_view(text));
  IdLists ids(texts.size());
  rust_call(lsr_tokenizer_encode, impl_->handle, views.data(), views.size(), add_special_tokens,
            ids.lists.data());
  std::vector<std::vector<int32_t>> encoded;
  for (const LsrIds& one : ids.lists) encoded.push_back(copy_of(one));
  return encoded;
}

EncodedText Tokenizer::encode_with_offsets(std::string_view text, bool add_special_tokens) const {
  IdLists ids(1);
  LsrIds& triples = ids.lists[0];
  rust_call(lsr_tokenizer_encode_with_offsets, impl_->handle, rust_view(text), add_special_tokens,
            &triples);
  EncodedText encoded;
  for (size_t i = 0; i + 2 < triples.size; i += 3) {
    encoded.ids.push_back(token_id(triples.data[i]));
    encoded.begin.push_back(triples.data[i + 1]);
    encoded.end.push_back(triples.data[i + 2]);
  }
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
  return token_id(id);
}

std::string Tokenizer::file_text() const {
  LsrString text{};
  rust_call(lsr_tokenizer_file, impl_->handle, &text);
  return take_rust_string(text);
}

int64_t Tokenizer::vocab_size() const { return impl_->info.at("vocab_size").get<int64_t>(); }
std::optional<std::string> Tokenizer::bos_token() const { return impl_->known("bos_token"); }
std::optional<std::string> Tokenizer::eos_token() const { return impl_->known("eos_token"); }
std::optional<std::string> Tokenizer::pad_token() const { return impl_->known("pad_token"); }
std::optional<std::string> Tokenizer::unk_token() const { return impl_->known("unk_token"); }
const std::set<int32_t>& Tokenizer::end_tokens() const { return impl_->end_tokens.all; }
const std::set<int32_t>& Tokenizer::end_tokens_of_generate() const {
  return impl_->end_tokens.of_generate;
}
bool Tokenizer::adds_bos_token() const { return impl_->info.contains("add_bos_token"); }
std::string Tokenizer::left_out() const {
  std::vector<std::string> names;
  for (const nlohmann::json& name : impl_->info.at("not_read")) {
    names.push_back(shortened(name.get<std::string>(), 80));
  }
  if (names.empty()) return "";
  return fmt::format("tokenizer_config.json: not read: {}; tokens are those of tokenizer.json.",
                     fmt::join(names, ", "));
}
std::optional<std::string> Tokenizer::chat_template() const {
  const auto own = impl_->known("chat_template");
  return own ? own : impl_->known("processor_template");
}
bool Tokenizer::has_processor_template() const {
  return impl_->info.contains("processor_template");
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
