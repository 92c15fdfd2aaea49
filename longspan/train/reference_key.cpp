#include "longspan/train/reference_key.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>

#include "longspan/base/names.h"
#include "longspan/files/checksum.h"
#include "longspan/input/input_file.h"
#include "longspan/input/model_files.h"
#include "longspan/models/grouped_format.h"
#include "longspan/settings/choices.h"
#include "longspan/settings/data_settings.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/model_settings.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/settings/preference_settings.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

/// Hashes texts and numbers in sequence.
class Hash {
 public:
  void add(const void* data, size_t size) { hash_.add(static_cast<const char*>(data), size); }
  void add(uint64_t number) { add(&number, sizeof(number)); }
  void add(const std::string& text) {
    add(text.size());
    add(text.data(), text.size());
  }
  void add(const std::vector<int32_t>& numbers) {
    add(numbers.size());
    add(numbers.data(), numbers.size() * sizeof(int32_t));
  }
  uint64_t value() const { return hash_.value(); }

 private:
  Xxh64 hash_;
};

/// True if the file decides the numbers of a model or of an adapter.
bool decides(const std::string& name) {
  return name.ends_with(".safetensors") || name == "config.json" || name == "adapter_config.json" ||
         name == "longspan_adapter.json" ||
         std::ranges::any_of(grouped_formats(),
                             [&](const GroupedFormat* format) { return name == format->own_file; });
}

void add_folder(Hash& hash, const std::string& folder) {
  std::set<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (decides(name)) files.insert(model_file(folder, name));
  }
  std::vector<char> part(size_t{1} << 20);
  for (const fs::path& path : files) {
    hash.add(path.filename().string());
    InputFile file(path.string(), "file of the reference model");
    while (const size_t size = file.read(part.data(), part.size())) hash.add(part.data(), size);
  }
}

}  // namespace

std::string reference_key(const ReferenceSettings& config, const ExampleSet& examples) {
  Hash hash;
  hash.add(config.method.stage);
  hash.add(uint64_t{config.model.pure_bf16 ? 2u : config.optimization.bf16 ? 1u : 0u});
  // With LoRA the base model is entirely in bf16; otherwise norms and biases are in fp32.
  hash.add(uint64_t{trains_adapter(config.method)});
  // Scaled positions depend on the maximum row length, not on the actual one.
  hash.add(config.model.rope_scaling);
  if (!config.model.rope_scaling.empty()) hash.add(static_cast<uint64_t>(config.data.cutoff_len));
  if (config.method.resize_vocab) {  // rows of the embedding and head
    hash.add(config.data.add_tokens);
    hash.add(config.data.add_special_tokens);
    hash.add(static_cast<uint64_t>(config.optimization.seed));
  }
  // The reference is ref_model with its adapters. Without ref_model it is the base model with all
  // adapters merged except the last, which with LoRA is the trained one.
  const bool named = !config.preferences.ref_model.empty();
  add_folder(hash, named ? config.preferences.ref_model : config.model.model_name_or_path);
  std::vector<std::string> adapters = split_names(named ? config.preferences.ref_model_adapters
                                                        : config.model.adapter_name_or_path);
  if (!named && !adapters.empty()) adapters.pop_back();
  for (const std::string& folder : adapters) add_folder(hash, folder);
  for (int64_t i = 0; i < examples.size(); ++i) {
    const ExamplePointer example = examples.example(i);
    hash.add(example->documents.size());
    for (const Sample& document : example->documents) {
      hash.add(document.input_ids);
      hash.add(document.labels);
      if (const std::string bytes = attached_bytes(document); !bytes.empty()) hash.add(bytes);
    }
  }
  return fmt::format("{:016x}", hash.value());
}

}  // namespace longspan
