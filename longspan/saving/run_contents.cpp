#include "longspan/saving/run_contents.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "longspan/base/names.h"
#include "longspan/checkpoint/weight_files.h"
#include "longspan/config/config.h"
#include "longspan/data/dataset_info.h"
#include "longspan/files/written_names.h"
#include "longspan/input/numbers.h"
#include "longspan/models/grouped_format.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/choices.h"
#include "longspan/text/tokenizer.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Meaning of a changed file for a resumed run, by role.
struct RoleFacts {
  FileRole role;
  std::string_view name, where_it_decides, where_it_does_not;
  bool makes_rows = false;  // decides only through the rows of training
  bool by_a_key = false;    // a key, which is compared separately, tells that the files differ
};
constexpr RoleFacts kRoles[] = {
    {.role = FileRole::kModelConfig,
     .name = "model configuration",
     .where_it_decides = "",
     .where_it_does_not = "What it says now counts from here on."},
    {.role = FileRole::kModelWeights,
     .name = "model weights",
     .where_it_decides =
         "What is not trained comes from there, and what is trained fits no other weights.",
     .where_it_does_not = "The checkpoint's weights are trained on."},
    {.role = FileRole::kTokenizer,
     .name = "tokenizer",
     .where_it_decides = "The rows are made by it.",
     .where_it_does_not = "",
     .makes_rows = true},
    {.role = FileRole::kMergedAdapter,
     .name = "merged adapter",
     .where_it_decides = "What is trained fits no other weights than those with it merged in.",
     .where_it_does_not = ""},
    {.role = FileRole::kAdapter,
     .name = "adapter",
     .where_it_decides = "",
     .where_it_does_not = "The checkpoint's adapter is trained on."},
    {.role = FileRole::kReference,
     .name = "reference model",
     .where_it_decides = "The loss compares with it.",
     .where_it_does_not = "What it says now counts from here on."},
    {.role = FileRole::kTrainingData,
     .name = "training data",
     .where_it_decides = "The rows and their order come from it.",
     .where_it_does_not = "",
     .makes_rows = true},
    {.role = FileRole::kEvaluationData,
     .name = "evaluation data",
     .where_it_decides = "",
     .where_it_does_not = "Evaluations before and after cannot be compared.",
     .by_a_key = true}};

const RoleFacts& facts_of(FileRole role) {
  const auto facts = std::ranges::find(kRoles, role, &RoleFacts::role);
  if (facts == std::end(kRoles)) throw std::logic_error("no such role of a file");
  return *facts;
}

/// nullopt for a role of a later version.
std::optional<FileRole> role_named(const std::string& name) {
  const auto facts = std::ranges::find(kRoles, name, &RoleFacts::name);
  if (facts == std::end(kRoles)) return std::nullopt;
  return facts->role;
}

std::string consequence_of(const RunFile& file) {
  const RoleFacts& facts = facts_of(file.role);
  return std::string(file.decides ? facts.where_it_decides : facts.where_it_does_not);
}

class Listing {
 public:
  void add(FileRole role, bool decides, const fs::path& path) {
    files_.push_back({.role = role,
                      .name = path.filename().string(),
                      // Keeps every `..`, whose meaning after a link differs from that of the text.
                      .path = fs::absolute(path).string(),
                      .decides = decides,
                      .stamp = {},
                      .digest = 0});
  }
  void add_where_there(FileRole role, bool decides, const fs::path& path) {
    std::error_code error;
    if (fs::exists(path, error)) add(role, decides, path);
  }
  /// Adds the files beside config.json that say how the weights are quantized.
  void add_quantization(FileRole role, bool decides, const fs::path& folder) {
    for (const GroupedFormat* format : grouped_formats()) {
      add_where_there(role, decides, folder / format->own_file);
    }
  }
  void add_weights(FileRole role, bool decides, const std::string& folder) {
    const WeightFiles weights = weight_files(folder);
    if (!weights.single.empty()) return add(role, decides, weights.single);
    std::set<std::string> paths;
    for (const auto& [tensor, path] : weights.shards) paths.insert(path);
    for (const std::string& path : paths) add(role, decides, path);
  }
  void add_adapter(FileRole role, bool decides, const fs::path& folder) {
    for (const std::string& name : adapter_file_names()) {
      add_where_there(role, decides, folder / name);
    }
  }
  void add_data(FileRole role, bool decides, const ContentSettings& settings,
                const std::string& names) {
    if (names.empty()) return;
    for (const DatasetEntry& entry :
         read_dataset_info(settings.data.dataset_dir, names, settings.method.stage)) {
      for (const std::string& file : entry.files) add(role, decides, file);
    }
  }
  RunContents take() { return std::move(files_); }

 private:
  RunContents files_;
};

std::vector<const RunFile*> of_role(const RunContents& contents, FileRole role) {
  std::vector<const RunFile*> files;
  for (const RunFile& file : contents) {
    if (file.role == role) files.push_back(&file);
  }
  return files;
}

/// True if both were read and are equal.
bool same(const RunFile& one, const RunFile& other) {
  return one.digest && one.stamp.size == other.stamp.size && one.digest == other.digest;
}

/// Returns a file of the same name, preferring one with the same contents; null if there is none.
const RunFile* counterpart(const RunFile& file, const std::vector<const RunFile*>& others) {
  const RunFile* found = nullptr;
  for (const RunFile* other : others) {
    if (other->name == file.name && (found == nullptr || same(*other, file))) found = other;
  }
  return found;
}

std::string text_of(const RunFile& file) {
  return fmt::format("{} bytes, XXH64 {:016x}", file.stamp.size, file.digest.value_or(0));
}

uint64_t number_from_hex(const std::string& digits) {
  uint64_t number = 0;
  const char* end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, number, 16);
  if (error != std::errc() || stopped != end) {
    throw std::invalid_argument(fmt::format("{} is no digest", digits));
  }
  return number;
}

}  // namespace

std::string_view name_of(FileRole role) { return facts_of(role).name; }

bool base_weights_decide(const MethodSettings& method, const PreferenceSettings& preferences) {
  return finetuning_type_of(method) != FinetuningType::kFull ||
         (stage_of(method).has_reference(preferences) && preferences.ref_model.empty());
}

RunContents files_of_run(const ContentSettings& settings) {
  Listing files;
  const fs::path model = settings.model.model_name_or_path;
  const bool reference_of_its_own = !settings.preferences.ref_model.empty();
  files.add(FileRole::kModelConfig, false, model / "config.json");
  files.add_quantization(FileRole::kModelConfig, false, model);
  files.add_weights(FileRole::kModelWeights,
                    base_weights_decide(settings.method, settings.preferences),
                    settings.model.model_name_or_path);
  for (const char* name : Tokenizer::kFiles) {
    files.add_where_there(FileRole::kTokenizer, true, model / name);
  }
  std::vector<std::string> adapters = split_names(settings.model.adapter_name_or_path);
  if (!adapters.empty()) {
    files.add_adapter(FileRole::kAdapter, false, adapters.back());
    adapters.pop_back();
  }
  for (const std::string& folder : adapters)
    files.add_adapter(FileRole::kMergedAdapter, true, folder);
  if (stage_of(settings.method).has_reference(settings.preferences) && reference_of_its_own) {
    files.add(FileRole::kReference, false,
              fs::path(settings.preferences.ref_model) / "config.json");
    files.add_quantization(FileRole::kReference, true, settings.preferences.ref_model);
    files.add_weights(FileRole::kReference, true, settings.preferences.ref_model);
    for (const std::string& folder : split_names(settings.preferences.ref_model_adapters)) {
      files.add_adapter(FileRole::kReference, true, folder);
    }
  }
  files.add_data(FileRole::kTrainingData, true, settings, settings.data.dataset);
  files.add_data(FileRole::kEvaluationData, false, settings, settings.data.eval_dataset);
  return files.take();
}

std::vector<ChangedFile> changed_files(const RunContents& then, const RunContents& now) {
  std::vector<ChangedFile> changed;
  if (then.empty() || now.empty()) return changed;
  for (const RoleFacts& facts : kRoles) {
    const FileRole role = facts.role;
    const auto before = of_role(then, role), after = of_role(now, role);
    if (std::ranges::equal(before, after,
                           [](const auto* one, const auto* other) { return same(*one, *other); })) {
      continue;
    }
    const auto add = [&](const RunFile& file, std::string how) {
      changed.push_back(
          {role, file.path, std::move(how), consequence_of(file), file.decides, facts.makes_rows});
    };
    for (const RunFile* file : after) {
      if (!file->digest) continue;
      const RunFile* old = counterpart(*file, before);
      if (old != nullptr && same(*old, *file)) continue;
      if (old != nullptr && !old->digest) {
        changed.push_back(
            {.role = role, .path = file->path, .how = "", .consequence = "", .was_read = false});
      } else if (old != nullptr) {
        add(*file, fmt::format("has {} now, and had {}", text_of(*file), text_of(*old)));
      } else if (!facts.by_a_key) {
        add(*file, "is new");
      }
    }
    for (const RunFile* file : before) {
      if (!facts.by_a_key && counterpart(*file, after) == nullptr) add(*file, "is gone");
    }
  }
  return changed;
}

Json json_of_contents(const RunContents& contents) {
  Json files = Json::array();
  for (const RunFile& file : contents) {
    Json entry = {{"role", name_of(file.role)},
                  {"name", file.name},
                  {"path", file.path},
                  {"decides", file.decides},
                  {"size", file.stamp.size},
                  {"mtime_ns", file.stamp.mtime_ns},
                  {"ctime_ns", file.stamp.ctime_ns},
                  {"inode", file.stamp.inode}};
    if (file.digest) entry["xxh64"] = fmt::format("{:016x}", *file.digest);
    files.push_back(std::move(entry));
  }
  return files;
}

RunContents contents_from(const Json& json) {
  RunContents contents;
  for (const Json& file : json) {
    const std::optional<FileRole> role = role_named(file.at("role"));
    if (!role) continue;
    contents.push_back({.role = *role,
                        .name = file.at("name"),
                        .path = file.at("path"),
                        .decides = file.at("decides"),
                        .stamp = {.size = whole_number(file.at("size"), "size"),
                                  .mtime_ns = whole_number(file.at("mtime_ns"), "mtime_ns"),
                                  .ctime_ns = whole_number(file.at("ctime_ns"), "ctime_ns"),
                                  .inode = unsigned_number(file.at("inode"), "inode")},
                        .digest = file.contains("xxh64")
                                      ? std::optional(number_from_hex(file.at("xxh64")))
                                      : std::nullopt});
  }
  return contents;
}

}  // namespace longspan
