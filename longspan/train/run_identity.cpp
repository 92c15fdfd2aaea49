#include "longspan/train/run_identity.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "longspan/files/checksum.h"
#include "longspan/input/numbers.h"
#include "longspan/models/grouped_format.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/optimization_settings.h"

namespace longspan {
namespace {

/// Returns a hash of the sizes and names of the trained parameters.
std::string fingerprint_of(const std::vector<HeldParameter>& parameters) {
  Xxh64 hash;
  for (const HeldParameter& parameter : parameters) {
    if (!parameter.trained) continue;
    const std::string text =
        fmt::format("{} {}\n", parameter.spec.name, parameter.spec.num_elements());
    hash.add(text.data(), text.size());
  }
  return fmt::format("{:016x}", hash.value());
}

std::string text_of(const ModelConfig& model) {
  const RopeScaling& rope = model.rotary.scaling;
  if (rope.type == RopeScaling::Type::kDefault) return "none";
  return fmt::format("{} with factor {} ({} positions)", name_of(rope.type), rope.factor,
                     model.max_position_embeddings);
}

/// Returns all that decides which numbers the bytes of the folder's files stand for.
std::string text_of(const StoredNumbers& stored) {
  switch (stored.format) {
    case StoredNumbers::Format::kPlain:
      return "plain";
    case StoredNumbers::Format::kMxfp4:
      return "MXFP4";
    case StoredNumbers::Format::kFp8:
      return fmt::format("fp8 in blocks of {} x {}", stored.block_rows, stored.block_columns);
    case StoredNumbers::Format::kGrouped:
      return fmt::format("{} in groups of {}, zeros plus {}, all but [{}], of [{}]",
                         stored.grouped->name, stored.packed.format.group_size, stored.zero_offset,
                         fmt::join(stored.packed.kept, ", "), fmt::join(stored.packed.only, ", "));
  }
  throw std::logic_error("weights that are stored nobody knows how");
}

/// Returns the keys, with the values of an existing adapter for LoRA's keys.
Settings settings_of(Settings settings, const std::optional<LoraShape>& lora) {
  if (!lora) return settings;
  set_value(settings, "lora_rank", fmt::format("{}", lora->r));
  set_value(settings, "lora_alpha", fmt::format("{}", lora->alpha));
  set_value(settings, "lora_dropout", fmt::format("{}", lora->dropout));
  set_value(settings, "use_rslora", lora->rank_stabilized ? "true" : "false");
  set_value(settings, "additional_target", fmt::format("{}", fmt::join(lora->whole_modules, ",")));
  set_value(settings, "use_dora", lora->decomposed ? "true" : "false");
  set_value(settings, "lora_target", fmt::format("{}", fmt::join(lora->modules, ",")));
  return settings;
}

}  // namespace

RunIdentity identity_of(const IdentitySettings& config, const Mesh& mesh, const ModelConfig& model,
                        const TrainedModel& trained, const RunData& data,
                        const LocalTime& template_time) {
  return {.stage = config.method.stage,
          .finetuning_type = config.method.finetuning_type,
          .trained = fingerprint_of(trained.all),
          .rows = data.fingerprint,
          .num_rows = data.train->size(),
          .rows_per_step = bounded_product(
              {config.optimization.per_device_train_batch_size, int64_t{mesh.data.size()},
               config.optimization.gradient_accumulation_steps},
              "rows of a step (per_device_train_batch_size x data-parallel groups x "
              "gradient_accumulation_steps)"),
          .seed = config.optimization.seed,
          .shuffled = !config.method.disable_shuffling,
          .template_time = template_time.text,
          .rope_scaling = text_of(model),
          .stored_numbers = base_weights_decide(config.method, config.preferences)
                                ? text_of(model.stored)
                                : std::string(),
          .settings = settings_of(config.keys, trained.lora),
          .contents = {}};
}

}  // namespace longspan
