#include "longspan/session/trained_adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "longspan/account/held_parameters.h"
#include "longspan/base/names.h"
#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/input/numbers.h"
#include "longspan/memory/machine_memory.h"
#include "longspan/models/composite.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/choices.h"
#include "longspan/text/bytes.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

/// Throws UserError if a new adapter of this rank does not fit this machine's memory.
void require_room_for_adapter(const Config& config, const ModelConfig& model) {
  int64_t num_bytes = 0;
  const ModelSpec& spec = model.spec;
  for (const ParameterSpec& matrix : lora_parameters_of(spec, lora_shape_of(config.method, spec))) {
    num_bytes = counted_sum(
        {num_bytes,
         bounded_product({4, matrix.shape.front(), matrix.shape.size() == 1 ? 1 : matrix.shape[1]},
                         "lora_rank")},
        "lora_rank");
  }
  const MachineMemory machine = machine_memory();
  if (num_bytes <= machine.bytes) return;
  throw UserError(fmt::format(
      "lora_rank: {} makes an adapter of {}, and {}. Choose a rank "
      "far below hidden_size, which is {}.",
      config.method.lora_rank, name_bytes(num_bytes), machine.text(), model.spec.hidden_size));
}

}  // namespace

void require_same_shape(const Config& config, const ModelSpec& model, const LoraShape& adapter) {
  const Config defaults;
  const auto refuse = [&](const char* key, const std::string& given, const std::string& has) {
    throw UserError(
        fmt::format("{}: {} is given, but the adapter {} has {}. The shape of an existing "
                    "adapter cannot change: remove the key.",
                    key, given, split_names(config.model.adapter_name_or_path).back(), has));
  };
  if (config.method.lora_rank != defaults.method.lora_rank &&
      config.method.lora_rank != adapter.r) {
    refuse("lora_rank", std::to_string(config.method.lora_rank), std::to_string(adapter.r));
  }
  if (config.method.lora_alpha && static_cast<double>(*config.method.lora_alpha) != adapter.alpha) {
    refuse("lora_alpha", std::to_string(*config.method.lora_alpha),
           fmt::format("{}", adapter.alpha));
  }
  if (!config.method.additional_target.empty() &&
      whole_modules_from(config.method.additional_target, model) != adapter.whole_modules) {
    refuse("additional_target", config.method.additional_target,
           adapter.whole_modules.empty()
               ? "none"
               : fmt::format("{}", fmt::join(adapter.whole_modules, ",")));
  }
  if (config.method.use_rslora && !adapter.rank_stabilized) refuse("use_rslora", "true", "none");
  if (config.method.use_dora && !adapter.decomposed) refuse("use_dora", "true", "none");
  if (config.method.lora_target != defaults.method.lora_target &&
      lora_shape_of(config.method, model).modules != adapter.modules) {
    refuse("lora_target", config.method.lora_target,
           fmt::format("{}", fmt::join(adapter.modules, ",")));
  }
}

void require_further_rows(const Config& config, const ModelConfig& model,
                          const LoraShape& adapter) {
  const std::string& folder = config.model.model_name_or_path;
  if (!config.method.resize_vocab || folder.empty()) return;
  const int64_t num_known = load_model_config(folder).spec.vocab_size;
  if (model.spec.vocab_size <= num_known) return;
  for (const ParameterSpec& parameter : parameters_of(model.spec)) {
    const bool has_row_per_token =
        parameter.role == ParameterRole::kEmbedding ||
        (parameter.role == ParameterRole::kHead && stage_of(config.method).uses_lm_head);
    if (!has_row_per_token || adapter.trains_whole(parameter)) continue;
    throw UserError(fmt::format(
        "resize_vocab adds {} to {}, and the adapter would not keep them: its modules "
        "(additional_target) do not have this one. Name embed_tokens{} in additional_target too, "
        "or leave that key out.",
        counted(model.spec.vocab_size - num_known, "row"), parameter.name,
        model.spec.tied_head ? "" : " and lm_head"));
  }
}

void require_new_adapter(const Config& config, const ModelConfig& model) {
  require_room_for_adapter(config, model);
  require_in_peft(model.spec, lora_shape_of(config.method, model.spec));
  require_further_rows(config, model, lora_shape_of(config.method, model.spec));
  const bool whole = !lora_shape_of(config.method, model.spec).whole_modules.empty();
  if (!whole || !is_composite(model)) return;
  throw UserError(
      "additional_target: a model that takes pictures trains no modules beside its adapters here, "
      "also none of resize_vocab. Remove it, or set finetuning_type: full.");
}

void require_adapter(const Config& config, const ModelConfig& model, const LoraShape& adapter) {
  require_same_shape(config, model.spec, adapter);
  if (!trains_adapter(config.method)) return;
  require_in_peft(model.spec, as_trained(adapter, config.method));
  require_further_rows(config, model, adapter);
  const auto refuse = [&](const char* what) {
    throw UserError(fmt::format("adapter_name_or_path: {} {}",
                                split_names(config.model.adapter_name_or_path).back(), what));
  };
  if (adapter.decomposed && config.model.pure_bf16) {
    refuse(
        "is DoRA's, whose magnitudes pure_bf16 would round to bf16. Set bf16: true in place of "
        "pure_bf16.");
  }
  if (adapter.decomposed && config.model.quantization_bit == 8) {
    refuse(
        "is DoRA's, which is not for quantization_bit: 8, whose products also round inputs. Set "
        "quantization_bit: 4.");
  }
  if (!adapter.whole_modules.empty() && stage_of(config.method).has_reference(config.preferences) &&
      config.preferences.ref_model.empty()) {
    refuse(
        "holds modules of the model (modules_to_save), and the model without the adapter would "
        "be the reference. Give ref_model.");
  }
  if (config.preferences.policy.rollout_update.value_or("") == "lora" &&
      (adapter.decomposed || !adapter.whole_modules.empty())) {
    refuse(
        "is not plain LoRA, and the servers of rollout_update: lora take no other adapters. "
        "Choose another rollout_update.");
  }
}

}  // namespace longspan
