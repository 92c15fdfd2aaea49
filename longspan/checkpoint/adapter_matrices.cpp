#include "longspan/checkpoint/adapter_matrices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/input/numbers.h"
#include "longspan/models/composite.h"

namespace longspan {
namespace {

constexpr std::string_view kOfValueHead = "v_head.";  // in adapters of TRL and others

/// Throws for a tensor that is no LoRA matrix. PEFT saves the embedding and the head beside an
/// adapter once the vocabulary has grown.
[[noreturn]] void refuse_tensor(const SafetensorsFile& file, const SafetensorsEntry& tensor,
                                const std::string& name, const ModelSpec& model) {
  const bool of_vocabulary = name.ends_with(kHeadName) || name.ends_with("embed_tokens.weight") ||
                             name.ends_with("lm_head.base_layer.weight") ||
                             name.ends_with("embed_tokens.base_layer.weight");
  if (!of_vocabulary || tensor.shape.empty()) {
    throw UserError(fmt::format("{}: {} is not a matrix of a LoRA adapter of a linear layer.",
                                file.path(), tensor.name));
  }
  const int64_t num_rows = tensor.shape.front();
  if (num_rows == model.vocab_size) {
    throw UserError(fmt::format(
        "{}: {} is a whole matrix of the model beside its LoRA adapter, and only plain LoRA is "
        "supported. Merge the adapter into its model with PEFT (merge_and_unload) and train from "
        "that.",
        file.path(), tensor.name));
  }
  throw UserError(fmt::format(
      "{}: the adapter was trained with a vocabulary that was {} from {} to {} tokens ({} has {} "
      "rows), and the model has {}. Merge it into its model with transformers and PEFT "
      "(resize_token_embeddings({}), PeftModel.from_pretrained, merge_and_unload, save_pretrained "
      "of the model and the tokenizer) and train from that.",
      file.path(), num_rows > model.vocab_size ? "grown" : "cut", model.vocab_size, num_rows,
      tensor.name, num_rows, model.vocab_size, num_rows));
}

/// Whether the name is one of those by which PEFT saves an embedding or head a second time: as the
/// copy of a tied head, and with the names inside of its own module.
bool is_second_copy(const ModelSpec& model, const std::set<std::string>& whole,
                    const std::string& name) {
  std::string module = name.substr(0, name.rfind(".weight"));
  for (const std::string_view ending : {".modules_to_save", ".original_module"}) {
    if (!module.ends_with(ending)) continue;
    module.resize(module.size() - ending.size());
    if (whole.contains(module + ".weight")) return true;
    break;
  }
  return model.tied_head && whole.contains(kEmbeddingName) && module + ".weight" == kHeadName;
}

bool is_magnitude(const std::string& name) { return name.ends_with(".lora_magnitude_vector"); }

/// Whether the name in the file is a matrix or the magnitudes of a linear layer's adapter.
/// Embeddings may have adapters too.
bool is_matrix_of_lora(const std::string& name) {
  return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight") || is_magnitude(name);
}

/// Compares the config's r with the matrix's, before anything of that size is made.
void require_rank(const SafetensorsFile& file, const SafetensorsEntry& entry, int64_t r,
                  const std::string& config_path) {
  if (is_magnitude(entry.name)) return;
  const size_t side = entry.name.find(".lora_A.") != std::string::npos ? 0 : 1;
  if (entry.shape.size() == 2 && entry.shape[side] == r) return;
  throw UserError(fmt::format(
      "{}: {} has shape [{}], but r is {} in {}. The weights and the config do not belong "
      "together.",
      file.path(), entry.name, fmt::join(entry.shape, ", "), r, config_path));
}

/// Shapes by name in a model with this adapter.
std::map<std::string, std::vector<int64_t>> wanted_shapes(const ModelConfig& config,
                                                          const LoraShape& shape) {
  std::map<std::string, std::vector<int64_t>> wanted;
  for (const ParameterSpec& matrix : lora_parameters_of(config.spec, shape)) {
    wanted[matrix.name] = matrix.shape;
  }
  for (const ParameterSpec& parameter : parameters_of(config.spec)) {
    if (shape.trains_whole(parameter)) wanted[parameter.name] = parameter.shape;
  }
  return wanted;
}

/// Returns the names of the model's parameters that the adapter holds whole.
std::set<std::string> whole_parameters(const ModelSpec& model, const LoraShape& shape) {
  std::set<std::string> names;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    if (shape.trains_whole(parameter)) names.insert(parameter.name);
  }
  return names;
}

/// The two matrices of a stack in the file.
struct StackInFile {
  const StackedAdapter* stack;
  const SafetensorsEntry *a = nullptr, *b = nullptr;
};

/// Takes the matrix where it belongs to one of these stacks.
bool take(std::vector<StackInFile>& stacks, const std::string& name,
          const SafetensorsEntry& entry) {
  for (StackInFile& found : stacks) {
    if (name == found.stack->a_name) {
      found.a = &entry;
      return true;
    }
    if (name == found.stack->b_name) {
      found.b = &entry;
      return true;
    }
  }
  return false;
}

/// Throws unless both matrices are there and have their shapes.
void require_stack(const SafetensorsFile& file, const StackInFile& found, int64_t r) {
  const StackedAdapter& stack = *found.stack;
  if (found.a == nullptr || found.b == nullptr) {
    throw UserError(fmt::format("{}: {} is there, but {} is not.", file.path(),
                                found.a == nullptr ? stack.b_name : stack.a_name,
                                found.a == nullptr ? stack.a_name : stack.b_name));
  }
  const std::vector<int64_t>& weight = stack.parts.front().shape;
  const int64_t rows = bounded_product({r, std::ssize(stack.parts)}, "an adapter's rows");
  const std::vector<int64_t> a_shape{rows, weight[1]}, b_shape{weight[0], rows};
  for (const auto& [entry, shape] : {std::pair{found.a, a_shape}, std::pair{found.b, b_shape}}) {
    require_floating(file, *entry);
    if (entry->shape == shape) continue;
    throw UserError(fmt::format(
        "{}: {} [{}] does not fit the model, which asks for [{}] where r is {}. The adapter and "
        "the model do not belong together.",
        file.path(), entry->name, fmt::join(entry->shape, ", "), fmt::join(shape, ", "), r));
  }
}

/// The contents of an adapter's file.
struct AdapterMatrices {
  // Of linear layers, and parameters that the adapter holds whole
  std::vector<std::pair<std::string, const SafetensorsEntry*>> by_name;
  std::vector<StackInFile> stacks;
  std::set<std::string> modules;  // modules with an adapter
  std::set<ModelPart> parts;      // parts with an adapter
};

/// Finds the matrices and the modules with an adapter by the names in the file, since
/// target_modules may be a pattern. `stacks`: those of the adapter's config; must outlive the
/// result.
AdapterMatrices matrices_in(const SafetensorsFile& file, const std::vector<StackedAdapter>& stacks,
                            const ModelConfig& config, const LoraShape& shape,
                            const std::string& config_path) {
  AdapterMatrices matrices;
  const ModelSpec& model = config.spec;
  const std::set<std::string> whole = whole_parameters(model, shape);
  std::map<std::string, ModelPart> part_of;  // of each linear layer outside the language model
  if (model.vision) {
    for (const ParameterSpec& parameter : parameters_of(*model.vision, model.vision_unit())) {
      if (!parameter.adapted_linear.empty()) part_of[parameter.adapted_linear] = parameter.part;
    }
  }
  const std::vector<std::string> known =
      lora_targets(model, {ModelPart::kLanguage, ModelPart::kTower, ModelPart::kProjector});
  for (const StackedAdapter& stack : stacks) matrices.stacks.push_back({&stack});
  for (const SafetensorsEntry& tensor : file.entries()) {
    std::string name = tensor.name;
    if (name.starts_with(kPeftPrefix)) name.erase(0, kPeftPrefix.size());
    name = name_in_language_model(config, name);
    if (is_of_value_head(tensor.name) || take(matrices.stacks, name, tensor)) continue;
    if (whole.contains(name)) {
      require_floating(file, tensor);
      matrices.by_name.emplace_back(std::move(name), &tensor);
      continue;
    }
    if (is_second_copy(model, whole, name)) continue;
    const size_t part = name.rfind(".lora_");
    if (part == std::string::npos || !is_matrix_of_lora(name)) {
      refuse_tensor(file, tensor, name, model);
    }
    const std::string layer = name.substr(0, part), module = layer.substr(layer.rfind('.') + 1);
    if (std::find(known.begin(), known.end(), module) == known.end()) {
      throw UserError(fmt::format("{}: {} has an adapter; supported are {}.", file.path(), layer,
                                  fmt::join(known, ", ")));
    }
    matrices.modules.insert(module);
    const auto part_found = part_of.find(layer);
    matrices.parts.insert(part_found == part_of.end() ? ModelPart::kLanguage : part_found->second);
    require_floating(file, tensor);
    require_rank(file, tensor, shape.r, config_path);
    matrices.by_name.emplace_back(std::move(name), &tensor);
  }
  std::erase_if(matrices.stacks,
                [](const StackInFile& s) { return s.a == nullptr && s.b == nullptr; });
  for (const StackInFile& found : matrices.stacks) {
    require_stack(file, found, shape.r);
    matrices.modules.insert(found.stack->module);
    matrices.parts.insert(ModelPart::kLanguage);
  }
  return matrices;
}

/// Throws unless each matrix has the model's shape.
void require_shapes(const SafetensorsFile& file, const AdapterMatrices& matrices,
                    std::map<std::string, std::vector<int64_t>> wanted) {
  for (const auto& [name, entry] : matrices.by_name) {
    const auto found = wanted.find(name);
    if (found == wanted.end() || entry->shape != found->second) {
      const bool of_vocabulary = name == kEmbeddingName || name == kHeadName;
      throw UserError(fmt::format(
          "{}: {} [{}] does not fit the model{}. {}", file.path(), name,
          fmt::join(entry->shape, ", "),
          found == wanted.end()
              ? ""
              : fmt::format(", which asks for [{}]", fmt::join(found->second, ", ")),
          of_vocabulary
              ? "Give the add_tokens, add_special_tokens and resize_vocab of its training."
              : "The adapter and the model do not belong together."));
    }
    wanted.erase(found);
  }
}

/// Throws where a part of a layer's adapter is missing: A, B, and magnitudes of a decomposed one;
/// or a parameter that the adapter holds whole. A layer may have no adapter at all.
void require_all_parts(const SafetensorsFile& file, const AdapterMatrices& matrices,
                       const ModelSpec& model, const LoraShape& shape) {
  std::set<std::string> names;
  for (const auto& [name, entry] : matrices.by_name) names.insert(name);
  for (const std::string& name : whole_parameters(model, shape)) {
    if (names.erase(name) > 0) continue;
    throw UserError(
        fmt::format("{}: {} is missing, but modules_to_save in the adapter's config names it.",
                    file.path(), name));
  }
  for (const std::string& name : names) {
    const std::string linear = name.substr(0, name.rfind(".lora_"));
    std::vector<std::string> parts{lora_a_name(linear), lora_b_name(linear)};
    if (shape.decomposed) parts.push_back(lora_magnitude_name(linear));
    for (const std::string& part : parts) {
      if (names.contains(part)) continue;
      throw UserError(fmt::format("{}: {} is there, but {} is not.", file.path(), name, part));
    }
  }
  if (names.empty() && matrices.stacks.empty()) {
    throw UserError(fmt::format("{} holds no adapter.", file.path()));
  }
}

}  // namespace

bool is_of_value_head(std::string_view name) {
  if (name.starts_with(kPeftPrefix)) name.remove_prefix(std::string_view(kPeftPrefix).size());
  return name.starts_with(kOfValueHead);
}

void require_floating(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  if (has_plain_numbers(entry.dtype)) return;
  throw UserError(
      fmt::format("{}: {} holds {} numbers; F32, BF16, F16 and F64 are supported. Convert it, or "
                  "take the original.",
                  file.path(), entry.name, safetensors_name(entry.dtype)));
}

std::vector<NamedTensor> read_adapter_matrices(const SafetensorsFile& file,
                                               const std::vector<StackedAdapter>& stacks,
                                               const ModelConfig& config,
                                               const std::string& config_path, LoraShape& shape) {
  const AdapterMatrices matrices = matrices_in(file, stacks, config, shape, config_path);
  shape.modules.insert(matrices.modules.begin(), matrices.modules.end());
  if (!matrices.parts.empty()) shape.parts = matrices.parts;
  require_shapes(file, matrices, wanted_shapes(config, shape));
  require_all_parts(file, matrices, config.spec, shape);
  std::vector<NamedTensor> read;
  for (const auto& [name, entry] : matrices.by_name) {
    read.push_back({name, file.read(*entry, at::kFloat)});
  }
  for (const StackInFile& found : matrices.stacks) {
    for (NamedTensor& matrix : taken_apart(*found.stack, file.read(*found.a, at::kFloat),
                                           file.read(*found.b, at::kFloat))) {
      read.push_back(std::move(matrix));
    }
  }
  return read;
}

}  // namespace longspan
